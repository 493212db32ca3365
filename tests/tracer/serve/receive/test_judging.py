"""What the sidecar does for a request of spans depends on these spans, not on how many requests it holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from history import history
from wire import encoded

from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteWriter

DRIFTING = "L 749 c0 h256 -> 256\nA 256\nS 256+48\nP\nL 760 c288 h512 -> 512"


class _Unwalked(OrderedDict[Any, Any]):
    """Entries that are looked up, and never gone through."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("all requests are gone through for one of them")

    def keys(self) -> NoReturn:
        raise AssertionError("all requests are gone through for one of them")


def test_no_request_of_spans_goes_through_all_accounts(tmp_path: Path) -> None:
    pipeline = Pipeline(SqliteWriter(tmp_path / "kvtrail.db"), Metrics())
    pipeline.detector.accounts = _Unwalked()
    assert pipeline.ingest(encoded(history(DRIFTING)), transport="grpc") is None
    assert [finding.rule for by_id in pipeline.detector.findings.values() for finding in by_id.values()]
