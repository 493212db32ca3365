"""Writes a report's files."""

from __future__ import annotations

import json
from pathlib import Path

from kvtrail.connector.simulate.conformance.report import Report, files_of
from kvtrail.connector.simulate.conformance.suite import Conformance
from kvtrail.connector.simulate.regression import as_pytest
from kvtrail.tracer.ingest import otlp_json

REPORT = "report.json"


def write(of: Conformance, report: Report, folder: Path) -> list[Path]:
    """Write the report, and the trace and the test of each failure; returns the files.

    Raises:
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts: dict[str, str] = {REPORT: json.dumps(report, indent=2, ensure_ascii=False) + "\n"}
    for found in of.checked.found:
        trace, test = files_of(found)
        texts[trace] = "".join(otlp_json.spans_to_json_lines(found.small.played.spans))
        texts[test] = as_pytest(found.small.scenario, connector=found.subject, failure=found.failure)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]
