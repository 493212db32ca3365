"""A sidecar that several engines send to: what one computed judges what another has loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from history import history
from wire import encoded

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive import recovery
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

CACHE = {semconv.CACHE_IDENTITY.key: "0123456789abcdef"}


def engine(name: str, check: str) -> list[Event]:
    """A request of an engine, with what a worker found of its blocks."""
    return history(f"{check}\nend", request=f"{name}-0123abcd", engine=name, recorder=name)


PRODUCER = engine("producer", "check computed 2 tells aa:1@0 ba:2@0 as plain")
CONSUMER = engine("consumer", "check loaded 1 unknown 1 tells aa:2@0 as plain")


@pytest.mark.usefixtures("forgets_at_once")
@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("order", [(PRODUCER, CONSUMER), (CONSUMER, PRODUCER)], ids=["computed first", "loaded first"])
def test_a_load_of_another_blocks_kv_is_found_in_whatever_order_engines_are_heard(
    tmp_path: Path, order: tuple[list[Event], ...], forgets: bool
) -> None:
    """Also where the sidecar `forgets` the requests, which have ended long ago."""
    metrics = Metrics()
    pipeline = Pipeline(SqliteWriter(tmp_path / "s.db"), metrics, grace_ns=0)
    for events in order:
        pipeline.ingest(encoded(events, CACHE), transport="grpc")
        pipeline.storage.write_rows()
        if forgets:
            pipeline.tidy()
            assert not pipeline.detector.accounts
    reader = SqliteReader(tmp_path / "s.db")
    (finding,) = reader.findings()
    assert finding["count"] == 1
    assert (finding["rule"], finding["engine"], finding["request"]) == ("byte-drift", "consumer", "consumer-0123abcd")
    verdicts = {row["engine"]: (row["verdict"], row["findings"]) for row in reader.requests()}
    assert verdicts["consumer"] == ("drift", 1)
    assert verdicts["producer"][1] == 0
    labels = {"engine": "consumer", "connector": "Connector", "rule": "byte-drift", "severity": "wrong output"} | {
        "known": "false"
    }
    assert metrics.registry.get_sample_value("kvtrail_findings_total", labels) == 1
    loaded = {"engine": "consumer", "connector": "Connector", "look": "loaded", "verdict": "wrong"}
    assert metrics.registry.get_sample_value("kvtrail_blocks_checked_total", loaded) == 1
    pipeline.close()


@pytest.mark.parametrize(("recalled", "found"), [(recovery.RECALLED, ["byte-drift"]), (0, [])])
def test_after_a_restart_what_was_computed_long_before_is_unknown_and_causes_no_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recalled: int, found: list[str]
) -> None:
    monkeypatch.setattr(recovery, "RECALLED", recalled)
    for events in (PRODUCER, CONSUMER):
        pipeline = Pipeline(SqliteWriter(tmp_path / "s.db"), Metrics(), grace_ns=0)
        pipeline.ingest(encoded(events, CACHE), transport="grpc")
        pipeline.close()
    assert [each["rule"] for each in SqliteReader(tmp_path / "s.db").findings()] == found
