"""Today's sidecar reads what the recorders of every released version sent, and comes to the figures of that version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from released import AS_SENT, VERSIONS, figures, split_step_spans

from kvtrail import __version__
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.semconv import STEP_SPAN, Kind
from kvtrail.tracer.ingest import protobuf

STREAMS = sorted(VERSIONS.glob(f"*{AS_SENT}"))


def test_this_version_has_a_stream() -> None:
    """CONTRIBUTING.md says how a release adds one."""
    assert __version__ in [path.stem for path in STREAMS], "run python tests/golden/record.py --version"


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_its_figures_are_those_of_its_own_sidecar(path: Path) -> None:
    assert figures(path) == json.loads(path.with_suffix(".json").read_text())


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_it_is_worth_keeping(path: Path) -> None:
    """It is what recorders of that version sent, and shows a bit of everything."""
    payloads = split_step_spans(path.read_bytes())
    spans = [span for payload in payloads for span in protobuf.spans(payload)]
    assert {span.resource[semconv.VERSION.key] for span in spans} == {path.stem}
    shown = {
        Kind.REQUEST, Kind.LOOKUP, Kind.ALLOC, Kind.PREEMPT, Kind.LOAD_PLAN, Kind.STORE_PLAN, Kind.RECEIVED,
        Kind.TRANSFER_END, Kind.CACHE_RESET, Kind.HEARTBEAT,
    }  # fmt: skip
    assert shown <= {span.name for span in spans}
    assert any(STEP_SPAN.encode() in payload for payload in payloads)
    expected = json.loads(path.with_suffix(".json").read_text())
    assert expected["verdicts"].keys() == {"ok", "drift", "unknown"}
    assert path.stat().st_size < 150_000
