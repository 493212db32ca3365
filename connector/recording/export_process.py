"""The helper process of a recorder: takes its batches from a pipe, encodes them, and sends them.

It lives as long as the pipe. When the engine dies without a goodbye, the helper says it in its place, so that requests
which the engine left open do not look alive.
"""

from __future__ import annotations

import logging
import marshal
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, BinaryIO

from kvtrail.connector.recording.context import Recorded, number_of
from kvtrail.connector.recording.encoder import Encoder, spans_in_a_request
from kvtrail.connector.recording.exporter import LENGTH, NOT_SENT, SENT, UNREADABLE
from kvtrail.connector.recording.transport import Delivery, from_environment
from kvtrail.tracer.model.semconv import CLOSED, FIELDS, Kind

GRACE_S = 1.5
"""How long the last batch and the goodbye may take after the engine has ended."""
_HEARTBEAT = Kind.HEARTBEAT.value
_CLOSED = FIELDS[Kind.HEARTBEAT].index(CLOSED)


def main() -> None:
    """Serve the pipe on standard input and output until it closes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the end of the pipe is the end
    os.nice(5)  # where cores are few, the engine goes first
    logging.disable(logging.CRITICAL)  # the recorder says once what the exporters would say at every attempt
    pipe = os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever prints must not be taken for an answer
    first = _frame(pipe)
    if first is None:
        return
    resource, span_id_base = first
    encoder, sender, most = Encoder(resource, span_id_base), from_environment(), spans_in_a_request()
    delivery = Delivery(sender)
    last: Recorded | None = None
    heartbeat: Recorded | None = None
    for events in _batches(pipe):
        try:
            payloads = list(encoder.requests(events, most))
        except Exception:
            os.write(answers, UNREADABLE)
            continue
        last = events[-1]
        heartbeat = next((event for event in reversed(events) if event[0] == _HEARTBEAT), heartbeat)
        os.write(answers, SENT if delivery.send(number_of(events[0]), payloads) else NOT_SENT)
    if last is not None and heartbeat is not None and not heartbeat[-1][_CLOSED]:
        sender.send(*encoder.requests([_goodbye(last, heartbeat)], most))
    sender.close()


def _goodbye(last: Recorded, heartbeat: Recorded) -> Recorded:
    """The heartbeat that the engine did not live to send, numbered as its next event."""
    kind, source, identity, _, number, epoch, *_, values = heartbeat
    now_ns = time.time_ns()
    values = (*values[:_CLOSED], True, *values[_CLOSED + 1 :])
    return (kind, source, identity, number_of(last) + 1, number + 1, epoch, now_ns, now_ns, None, values)


def _batches(pipe: BinaryIO) -> Iterator[list[Recorded]]:
    """The batches that come through the pipe. A thread reads them, so that the pipe's end is seen even while a batch is
    being sent to a tracer that does not answer: `GRACE_S` later it is over."""
    frames: SimpleQueue[Any] = SimpleQueue()

    def read() -> None:
        while (frame := _frame(pipe)) is not None:
            frames.put(frame)
        frames.put(None)
        time.sleep(GRACE_S)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return iter(frames.get, None)


def _frame(pipe: BinaryIO) -> Any:
    """The next frame; None at the end of the pipe, also in the middle of a frame."""
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = pipe.read(length)
    return marshal.loads(body) if len(body) == length else None
