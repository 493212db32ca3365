"""One scenario on the bare scheduler with a real LMCache's scheduler side, for a process of its own: only one LMCache can be
imported in a process.

Takes one argument, JSON: `connector`, `extra` (its configuration), `scenario`, and `trace`, the file to write or null. Prints
one line of JSON at the end: the failures (id and text), and how many lookups hit.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

from kvtrail.connector.simulate import tiny_model
from kvtrail.connector.simulate.check.connector_under_test import ConnectorUnderTest
from kvtrail.connector.simulate.check.trial import run
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.tracer.events.events import Lookup
from kvtrail.tracer.ingest import otlp_json


def main() -> None:
    task = json.loads(sys.argv[1])
    tiny_model.prepare_environment()
    played, failures = run(ConnectorUnderTest(task["connector"], task["extra"]), Scenario.from_dict(task["scenario"]))
    if task["trace"]:  # without the name of the folder that it was recorded in
        text = otlp_json.spans_to_json_line(played.spans) + "\n"
        Path(task["trace"]).write_text(
            re.sub(re.escape(tempfile.gettempdir()) + r'/[^"]*', "model", text), encoding="utf-8"
        )
    hits = sum(isinstance(event, Lookup) and bool(event.answer) for event in played.events)
    print(json.dumps({"failures": {each.id: each.text for each in failures}, "hits": hits}), flush=True)


if __name__ == "__main__":
    main()
