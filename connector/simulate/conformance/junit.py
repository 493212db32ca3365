"""The suite's report as JUnit's XML, for CI: a test case for each requirement."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Any

from kvtrail.connector.simulate.conformance.html import element

NAME = "junit.xml"


def as_junit(report: Mapping[str, Any]) -> str:
    """A test case for each requirement: it fails with the failures that break it, and is skipped, with the reason, where it
    was not exercised."""
    requirements, found = report["requirements"], {each["id"]: each for each in report["failures"]}
    name = report["connector"]["name"]
    results = [each["result"] for each in requirements]
    suite = element(
        "testsuite",
        name=f"kvtrail conformance {name}",
        tests=len(results),
        failures=results.count("failed"),
        errors=0,
        skipped=results.count("not exercised"),
        time=f"{report['seconds']:.3f}",
        timestamp=report["at"],
    )
    properties = element("properties")
    for key, value in (
        ("suite", report["suite"]["version"]),
        ("vllm", report["vllm"]),
        ("seed", report["seed"]),
        ("verdict", report["verdict"]),
        *(("inconclusive", reason) for reason in report["inconclusive"]),
    ):
        properties.append(element("property", name=key, value=str(value)))
    suite.append(properties)
    for each in requirements:
        case = element("testcase", classname=name, name=each["id"])
        if each["why"] is not None:
            case.append(element("skipped", message=each["why"]))
        if each["failures"]:
            text = "\n\n".join(told(found[id_]) for id_ in each["failures"] if id_ in found)
            case.append(element("failure", text, message="; ".join(each["failures"])))
        case.append(
            element("system-out", f"{each['sentence']}\nSource: {each['source']}\nReached {each['reached']} times.")
        )
        suite.append(case)
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def told(failure: Mapping[str, Any]) -> str:
    """A failure as text: what is wrong, the command that shows it again, and where it died."""
    return "\n".join(filter(None, (failure["id"], failure["text"], failure["again"], failure["details"])))
