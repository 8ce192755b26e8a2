"""The gates as a JUnit file, which pipelines show as tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

# What XML 1.0 cannot hold, even escaped.
_UNPRINTABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(report: Mapping[str, Any]) -> str:
    """One test case a gate: a failure where it fails, skipped where it is undecided, both with the gate's text."""
    reasons = report["reasons"]
    counts = {
        "tests": str(len(reasons)),
        "failures": str(sum(reason["passed"] is False for reason in reasons)),
        "errors": "0",
        "skipped": str(sum(reason["passed"] is None for reason in reasons)),
        "time": "0",
    }
    suites = ElementTree.Element("testsuites", {"name": "specaudit", **counts})
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "specaudit", **counts})
    for reason in reasons:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": "specaudit.report", "name": str(reason["gate"]), "time": "0"}
        )
        text = _UNPRINTABLE.sub("\ufffd", reason["text"])
        if reason["passed"] is False:
            ElementTree.SubElement(case, "failure", {"message": text, "type": "gate"}).text = text
        elif reason["passed"] is None:
            ElementTree.SubElement(case, "skipped", {"message": f"undecided: {text}"})
        else:
            ElementTree.SubElement(case, "system-out").text = text
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=False) + "\n"
