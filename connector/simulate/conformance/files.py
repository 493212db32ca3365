"""Writes a report's files."""

from __future__ import annotations

import json
from pathlib import Path

from kvtrail.connector.simulate.check.report import texts_of
from kvtrail.connector.simulate.conformance import junit, page
from kvtrail.connector.simulate.conformance.report import Report
from kvtrail.connector.simulate.conformance.suite import Conformance

REPORT = "report.json"


def write(of: Conformance, report: Report, folder: Path) -> list[Path]:
    """Write the report, as JSON, as JUnit's XML and as a page, and the files of each failure; returns the files.

    Raises:
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts: dict[str, str] = {
        REPORT: json.dumps(report, indent=2, ensure_ascii=False) + "\n",
        junit.NAME: junit.as_junit(report),
    }
    for found in of.checked.found:
        texts |= texts_of(found)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [*(folder / name for name in texts), page.write(report, folder)]
