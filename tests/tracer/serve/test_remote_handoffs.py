"""Which hand-offs a sidecar asks the fleet's store for, and when."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from kvtrail.tracer.detect.pairs import RemoteHandoff
from kvtrail.tracer.serve.remote_handoffs import RemoteHandoffs
from kvtrail.tracer.store.handoffs import HandoffRow


class Judging:
    """A judge with two hand-offs of its own."""

    def ingest_remote(self, those: Iterable[RemoteHandoff]) -> bool:
        assert [*those] == []
        return True

    def own_handoffs(self) -> Iterable[str]:
        return "a", "b"


class Store:
    """A store that holds no events of others, and notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def handoffs(self, keys: Collection[str]) -> Sequence[HandoffRow]:
        self.asked.append([*keys])
        return ()


def test_all_that_are_due_are_asked_for_at_once_and_each_again_after_a_longer_wait() -> None:
    now_s, store = [100.0], Store()
    handoffs = RemoteHandoffs(Judging(), clock=lambda: now_s[0])
    for now_s[0] in (100.0, 100.5, 101.0, 102.0, 103.0):
        handoffs.ask(store)
    assert store.asked == [["a", "b"]] * 3, "at once, a second later, and two seconds after that"
