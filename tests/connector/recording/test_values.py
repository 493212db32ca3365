"""Odd values cost one event at most: never the batch, and never what is recorded of others."""

from __future__ import annotations

import enum
from typing import Any

import numpy
import pytest
from memory import MemoryTransport, a_recorder, a_request, record
from processes import SLOW_S

from kvtrail.connector.recording.values import with_declared_types
from kvtrail.tracer.events.events import Heartbeat
from kvtrail.tracer.events.semconv import Kind


class Text(enum.StrEnum):
    ONE = "one"


class Number(enum.IntEnum):
    ONE = 1


class Hostile:
    """Whatever is asked of it raises."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]

    def __index__(self) -> int:
        raise RuntimeError


def a_lookup(*values: Any, **changes: Any) -> Any:
    event = {"kind": "kv.lookup", "source": b"", "identity": (b"r" * 24, b"", "r", True), "numbers": (1, 2, 0, 3, 4)}
    event |= changes
    return (event["kind"], event["source"], event["identity"], *event["numbers"], None, values)


@pytest.mark.parametrize(
    ("odd", "reported"),
    [
        (numpy.int64(7), 7),
        (Number.ONE, 1),
        (True, 1),
        (7.0, 7),
        (7.5, None),
        ("7", None),
        (object(), None),
        (Hostile(), None),
    ],
)
def test_a_number_is_a_number_or_unknown(odd: Any, reported: int | None) -> None:
    event = with_declared_types(
        a_lookup(700, 0, odd, 256, False, None, None, (numpy.str_("k"),), 3, bytearray(b"hash"), None)
    )
    assert event is not None
    assert event[-1] == (700, 0, reported, 256, False, None, None, ("k",), 3, b"hash", None)
    assert [type(value) for value in event[-1]][2] is type(reported)


@pytest.mark.parametrize(
    "odd",
    [
        a_lookup(700, kind="kv.lookup"),
        a_lookup(*range(11), kind="kv.unheard"),
        a_lookup(*range(11), identity=(b"", b"", 7, True)),
        a_lookup(*range(11), numbers=(1, 2, None, 3, 4)),
    ],
    ids=["too few values", "unknown kind", "no text for an id", "no epoch"],
)
def test_what_makes_no_event_is_left_out(odd: Any) -> None:
    assert with_declared_types(odd) is None


def test_one_odd_event_in_a_batch_costs_itself_only() -> None:
    transport = MemoryTransport()
    recorder, request = a_recorder(transport), a_request()
    with transport.held_up():
        record(recorder, request, 3)
        context = recorder.contexts.of(request)
        recorder.record(Kind.LOOKUP.value, b"", context, 1, 2, (700, 0))
        recorder.record(Kind.LOOKUP.value, b"", context, 1, 2, (Number.ONE, 0, Hostile(), 1.0, 1, *(None,) * 6))
        record(recorder, request, 3)
    recorder.close(SLOW_S)
    assert [event.sequence for event in transport.lookups()] == [0, 1, 2, 4, 5, 6, 7]
    odd = transport.lookups()[3].numbers()
    assert (odd["total"], odd.get("matched"), odd["returned"], odd["is_async"]) == (1, None, 1, True)
    assert {event.numbers()["total"] for event in transport.lookups()} == {1, 700}
    heartbeat = [event for event in transport.events() if isinstance(event, Heartbeat)][-1]
    assert heartbeat.recorder_unrecorded == ("kv.lookup:1",)
