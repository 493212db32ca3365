"""What a request's page gives away says what the page says, where the real scheduler met a fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from downloads import Sidecar
from test_faults import events_of, later

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.history.history import load
from kvtrail.tracer.history.judging import findings_of

SHOWN = ("stale-lookup", "block-reuse", "key-collision")
"""Faults that the spans of a part show by themselves."""
CARRIED = ("phantom-hit", "store-short", "evicted-hit", "failed-load-resume")
"""Faults that some requests' parts do not: more of the engine would be needed."""


@pytest.mark.parametrize("fault", [*SHOWN, *CARRIED])
def test_a_part_of_a_faulty_run_says_what_its_page_says_and_nobody_finds_more_in_it(
    tmp_path: Path, recorded: Callable[[], list[Event]], fault: str
) -> None:
    events = events_of(fault, Level.DETAILED, tmp_path, recorded)
    folder = tmp_path / "sidecar"
    folder.mkdir()
    sidecar = Sidecar(folder)
    sidecar.hear([*events, *later(events, fault)])
    audits = sidecar.assert_parts_say_what_pages_say()
    assert any(result.recorded for result in audits) == (fault in CARRIED)
    known = {finding["id"] for finding in sidecar.reader.findings(limit=1000)}
    assert fault in {finding.rule for result in audits for finding in result.findings}
    for page, path in sidecar.pages():
        assert findings_of(load([path]).events).keys() <= known, page["request"]["request"]
    sidecar.pipeline.close()
