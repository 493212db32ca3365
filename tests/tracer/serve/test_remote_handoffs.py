"""Which hand-offs a sidecar asks the fleet's store for, and when."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from kvtrail.tracer.detect.pairs import RemoteHandoff
from kvtrail.tracer.serve.remote_handoffs import RemoteHandoffs
from kvtrail.tracer.store.handoffs import HandoffRow


class Judging:
    """The part of a pipeline that is asked: it has two hand-offs of its own."""

    def ingest_remote(self, those: Iterable[RemoteHandoff]) -> bool:
        assert [*those] == []
        return True

    def own_handoffs(self) -> Iterable[str]:
        return "a", "b"


class Store:
    """The part of a writer that is asked: a store that holds no events of others, and notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def handoffs(self, keys: Collection[str]) -> Sequence[HandoffRow]:
        self.asked.append([*keys])
        return ()


def test_all_that_are_due_are_asked_for_at_once_and_each_again_after_a_longer_wait() -> None:
    now_s, store = [100.0], Store()
    handoffs = RemoteHandoffs(Judging(), clock=lambda: now_s[0])  # type: ignore[arg-type]
    for now_s[0] in (100.0, 100.5, 101.0, 102.0, 103.0):
        handoffs.ask(store)  # type: ignore[arg-type]
    assert store.asked == [["a", "b"]] * 3, "at once, a second later, and two seconds after that"
