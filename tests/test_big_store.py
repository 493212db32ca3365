"""A large store that is made for benchmarks is one that a sidecar could have written, and few of its spans are read."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from big_store import make
from stores import last_number

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.ingest import decode
from kvtrail.tracer.ingest.decode import Decoded
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.ledger.lanes import Window, lane_of
from kvtrail.tracer.store import FindingFilter
from kvtrail.tracer.store.sqlite import recall
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

pytestmark = pytest.mark.long
SPANS = 60_000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("big") / "big.db"
    make(path, SPANS)
    return path


def test_its_rows_are_what_the_detector_makes_of_its_spans(path: Path) -> None:
    store = SqliteReader(path)
    known = store.requests(limit=SPANS)
    assert last_number(store) == pytest.approx(SPANS, rel=0.05)
    running = [row for row in known if row["ended_ns"] is None]
    drifting = random.Random(1).sample([row for row in known if row["findings"]], 15)
    assert running
    for row in (*running, *drifting, *random.Random(2).sample(known, 30)):
        events = [event for span in store.spans_of(row) if (event := decode.from_span(span)) is not None]
        detector = Detector(on_fact=lambda fact, account: account.phases.enter(fact))
        detector.feed(sorted(events, key=lambda event: event.request_sequence))
        key = (row["engine"], row["request"])
        account, found = detector.accounts[key], detector.findings.get(key, {})
        alone = _as_json(account.as_dict())
        del alone["causes"]  # what its prompt found in the caches follows from the events of others
        alone["reason"] = alone.pop("outcome")  # the outcome of a stored request also depends on its engine
        assert {name: row[name] for name in alone} == alone
        assert row["causes"] or not row["lookups"]
        for split in row["causes"]:
            (admission,) = (event for event in events if event.span_id == split["span_id"])
            assert (admission.kind, admission.end_ns) == ("kv.alloc", split["at_ns"])
            assert sum(part["tokens"] for part in split["parts"]) == split["total"]
        (lane,) = store.lanes(Window(from_ns=0, to_ns=2**62, search=row["request"]), live=()).lanes
        assert lane == lane_of(account, verdict=row["verdict"], findings=len(found))
        kept = store.findings(FindingFilter(request=row["request"]))
        assert kept == [_as_json(finding.as_dict()) for finding in found.values()]
        assert bool(kept) == (row["verdict"] == "drift")


def test_a_restart_reads_the_spans_of_open_requests_and_no_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    class Counting(ProtobufDecoder):
        def decoded(self, payload: bytes) -> Decoded:
            decoded = super().decoded(payload)
            read.append(len(decoded.events))
            return decoded

    monkeypatch.setattr(recall, "ProtobufDecoder", Counting)
    store, writer = SqliteReader(path), SqliteWriter(path)
    some = random.Random(3).sample(store.requests(limit=SPANS), 60)
    keys = {(row["engine"], row["request"]) for row in some}
    events = [event for part in writer.events_of(keys, until=writer.last_number()) for event in part]
    writer.close()
    assert len(events) == sum(len(store.spans_of(row)) for row in some)
    assert len({(event.engine, event.request) for event in events}) == len(some) < sum(read) / 5
    assert sum(read) == len(events)


def _as_json(data: Any) -> Any:
    return json.loads(json.dumps(data))
