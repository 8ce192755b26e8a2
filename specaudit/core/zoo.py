"""Where the bundled models, heads and prompts are."""

from pathlib import Path

import specaudit

ZOO = Path(specaudit.__file__).parent / "zoo"
