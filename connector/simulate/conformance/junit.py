"""The suite's report as JUnit's XML, for CI: a test case for each requirement."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Any

from kvtrail.tracer.reports.terminal import plain

NAME = "junit.xml"


def as_junit(report: Mapping[str, Any]) -> str:
    """A test case for each requirement: it fails with the failures that break it, and is skipped, with the reason, where it
    was not exercised."""
    requirements, found = report["requirements"], {each["id"]: each for each in report["failures"]}
    name = report["connector"]["name"]
    results = [each["result"] for each in requirements]
    suite = ET.Element(
        "testsuite",
        name=printable(f"kvtrail conformance {name}"),
        tests=str(len(results)),
        failures=str(results.count("failed")),
        errors="0",
        skipped=str(results.count("not exercised")),
        time=f"{report['seconds']:.3f}",
        timestamp=printable(report["at"]),
    )
    properties = ET.SubElement(suite, "properties")
    for key, value in (
        ("suite", report["suite"]["version"]),
        ("vllm", report["vllm"]),
        ("seed", str(report["seed"])),
        ("verdict", report["verdict"]),
        *(("inconclusive", reason) for reason in report["inconclusive"]),
    ):
        ET.SubElement(properties, "property", name=key, value=printable(value))
    for each in requirements:
        case = ET.SubElement(suite, "testcase", classname=printable(name), name=printable(each["id"]))
        if each["why"] is not None:
            ET.SubElement(case, "skipped", message=printable(each["why"]))
        if each["failures"]:
            text = "\n\n".join(failure_text(found[id_]) for id_ in each["failures"] if id_ in found)
            failure = ET.SubElement(case, "failure", message=printable("; ".join(each["failures"])))
            failure.text = printable(text)
        said = f"{each['sentence']}\nSource: {each['source']}\nReached {each['reached']} times."
        ET.SubElement(case, "system-out").text = printable(said)
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def printable(text: str) -> str:
    """Untrusted text as XML and HTML can hold it: control characters but line breaks are escaped."""
    return "\n".join(map(plain, text.split("\n")))


def failure_text(failure: Mapping[str, Any]) -> str:
    """A failure as text: what is wrong, the command that shows it again, and where it died."""
    return "\n".join(filter(None, (failure["id"], failure["text"], failure["again"], failure["details"])))
