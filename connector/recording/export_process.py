"""The export process of a recorder: reads its batches from a pipe, encodes and sends them, and answers each with one byte.

It lives as long as the pipe. If the engine dies without a goodbye, this process sends the goodbye in its place, so that
requests which the engine left open do not look alive.
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

from kvtrail.connector.recording import transport
from kvtrail.connector.recording.exporter import LENGTH, NOT_SENT, SENT, UNREADABLE, InProcessExporter
from kvtrail.connector.recording.ring import EventTuple, sequence_of
from kvtrail.tracer.model.semconv import CLOSED, FIELDS, Kind

GRACE_S = 1.5
"""How long the last batch and the goodbye may take after the engine has ended."""
_HEARTBEAT = Kind.HEARTBEAT.value
_CLOSED = FIELDS[Kind.HEARTBEAT].index(CLOSED)


def main() -> None:
    """Serve the pipe on standard input and output until it closes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # only the end of the pipe ends it
    os.nice(5)  # where cores are few, the engine goes first
    logging.disable(logging.CRITICAL)  # the recorder warns once; the SDK would at every attempt
    pipe = os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing that is printed may be mistaken for an answer
    hello = _frame(pipe)
    if hello is None:
        return
    exporter = InProcessExporter(transport.from_environment())
    exporter.open(*hello)
    last: EventTuple | None = None
    heartbeat: EventTuple | None = None
    for events in _batches(pipe):
        try:
            answer = SENT if exporter.send(events) else NOT_SENT
        except Exception:
            answer = UNREADABLE
        else:
            last = events[-1]
            heartbeat = next((event for event in reversed(events) if event[0] == _HEARTBEAT), heartbeat)
        os.write(answers, answer)
    if last is not None and heartbeat is not None and not heartbeat[-1][_CLOSED]:
        exporter.send([_goodbye(last, heartbeat)])
    exporter.close()


def _goodbye(last: EventTuple, heartbeat: EventTuple) -> EventTuple:
    """The heartbeat that the engine did not live to send, numbered as its next event."""
    kind, source, identity, _, number, epoch, *_, values = heartbeat
    now_ns = time.monotonic_ns()  # the same clock in all processes of a machine
    values = (*values[:_CLOSED], True, *values[_CLOSED + 1 :])
    return (kind, source, identity, sequence_of(last) + 1, number + 1, epoch, now_ns, now_ns, None, values)


def _batches(pipe: BinaryIO) -> Iterator[list[EventTuple]]:
    """The batches that come through the pipe. A thread reads them, so that the pipe's end is seen even while a batch is
    being sent to a tracer that does not answer; `GRACE_S` later the process exits."""
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
