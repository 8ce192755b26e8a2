"""From artifacts to a decision and a report that people and pipelines read.

``decide`` holds the numbers against a ``Policy``, gate by gate; ``judge`` does so again for a written report under
another policy; ``render`` writes the folder. Loading the package loads no plotting and no templates.
"""

from specaudit.report.decision import decide as decide
from specaudit.report.decision import exit_code as exit_code
from specaudit.report.decision import judge as judge
from specaudit.report.policy import Policy as Policy
from specaudit.report.policy import load_policy as load_policy
from specaudit.report.rendering import draw_bench as draw_bench
from specaudit.report.rendering import render as render
from specaudit.report.summary import summary_markdown as summary_markdown
from specaudit.report.summary import summary_text as summary_text
