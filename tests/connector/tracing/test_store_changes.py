"""What a store's probe follows is reported before each lookup, in order, with the request that did it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from memory import MemoryTransport, a_recorder

from kvtrail.connector.known.probe import Change, Probe, StoreContents
from kvtrail.connector.tracing.scheduler_side import SchedulerInstrumentation
from kvtrail.tracer.events.events import PrefixCache
from kvtrail.tracer.events.hash_chains import split_hashes
from kvtrail.tracer.events.semconv import Level

Reported = tuple[tuple[int, ...], list[int], bool, str | None, str | None]
NOT_REPORTED: Reported = ((), [], False, "cpu", None)
"""From now on nothing is reported."""


class Contents(StoreContents):
    """A store's, made by hand."""

    tier = "cpu"
    changes_in_plans = False

    def __init__(self) -> None:
        self.changes: list[tuple[Change, str | None]] = []
        self.all: list[bytes] = []
        self.fails = False

    def changed(self) -> Sequence[tuple[Change, str | None]]:
        if self.fails:
            raise KeyError("unheard of")
        changes, self.changes = self.changes, []
        return changes

    def held(self) -> Sequence[bytes]:
        return self.all


class Following(Probe):
    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def contents(self, connector: Any) -> Contents:
        return self._contents


def key(number: int) -> bytes:
    return number.to_bytes(8)


@pytest.fixture
def reported() -> Any:
    """A store, what records it, and a function that gives what was reported since its last call."""
    transport, contents = MemoryTransport(), Contents()
    recorder = a_recorder(transport)
    recorder.level.set(Level.DETAILED, None)
    instrumentation = SchedulerInstrumentation(recorder, name="X", probe=Following(contents))
    instrumentation._follow_store(None)

    def fresh() -> list[Reported]:
        instrumentation._flush_cache_events(recorder.steps or 1)
        recorder.flush()
        events = [event for event in transport.events() if isinstance(event, PrefixCache)]
        transport.payloads.clear()
        return [
            (
                each.cache_changes,
                [int.from_bytes(h) for h in split_hashes(each.block_hashes)],
                *(each.cache_whole, each.pool_tier, each.pushed_by),
            )
            for each in events
        ]

    yield contents, recorder, instrumentation, fresh
    recorder.close()


def test_it_begins_with_the_whole_and_goes_on_with_changes_each_by_its_request(reported: Any) -> None:
    contents, _, _, fresh = reported
    assert fresh() == [((), [], True, "cpu", None)]
    contents.changes = [((key(1),), "a"), (key(2), "a"), (key(3), "a"), ((key(2),), "b"), (None, None)]
    assert fresh() == [
        ((-1, 2), [1, 2, 3], False, "cpu", "a"),
        ((-1,), [2], False, "cpu", "b"),
        ((0,), [], False, "cpu", None),
    ]
    assert fresh() == []


def test_after_a_loss_the_whole_store_is_resynced(reported: Any) -> None:
    contents, recorder, _, fresh = reported
    fresh()
    recorder._lost["lost"] += 1
    contents.changes, contents.all = [(key(4), "a")], [key(4), key(5)]
    assert fresh() == [((1,), [4], False, "cpu", "a"), ((2,), [4, 5], True, "cpu", None)]


def test_nothing_is_reported_at_level_basic_and_everything_afterwards(reported: Any) -> None:
    contents, recorder, _, fresh = reported
    fresh()
    recorder.level.set(Level.BASIC, None)
    contents.changes, contents.all = [(key(4), "a")], [key(4)]
    assert fresh() == [NOT_REPORTED]
    assert fresh() == []
    recorder.level.set(Level.DETAILED, None)
    assert fresh()[-1] == ((1,), [4], True, "cpu", None)


def test_what_is_no_longer_known_is_not_reported_and_the_tracer_learns_that(reported: Any) -> None:
    contents, _, _, fresh = reported
    fresh()
    contents.fails = True
    assert fresh() == [NOT_REPORTED]
    contents.fails = False
    contents.changes = [(key(1), "a")]
    assert fresh() == []
