"""The export process of a recorder: reads its batches from a pipe, encodes and sends them, and answers each.

It is not a child of the engine: vLLM kills its children when it shuts down, and this process must outlive the engine to send
the end record. If the engine dies without one, this process sends the roots of the open requests and the end record on its
behalf (`post_mortem`).
"""

from __future__ import annotations

import logging
import marshal
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic_ns
from typing import Any

from kvtrail.connector.recording import transport
from kvtrail.connector.recording.exporter import (
    ANSWER,
    LENGTH,
    NOT_SENT,
    SENT,
    SENT_TO_KVTRAIL,
    UNREADABLE,
    InProcessExporter,
)
from kvtrail.connector.recording.post_mortem import PostMortem
from kvtrail.connector.recording.ring import EventTuple
from kvtrail.connector.recording.send_failures import ALL
from kvtrail.connector.recording.transport import REFUSALS

GRACE_S = 5.0
"""Maximum time for sending the last batches and the end record after the engine has ended."""
TORN = "torn"
"""Marker for a pipe that ended within a frame."""
_AT_ONCE = 1 << 16
"""Bytes read from the pipe at once."""


def main(engine_pid: int) -> None:
    """Serve the pipe on standard input and output until it closes, or the engine ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the end of the engine ends it
    os.nice(5)  # the engine has priority if cores are scarce
    logging.disable(logging.CRITICAL)  # the recorder warns once; the SDK would at every attempt
    pipe, answers = os.dup(sys.stdin.fileno()), os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # printed text must not be mistaken for an answer
    frames = _frames_until_the_end(pipe, engine_pid)
    hello = next(frames, None)
    if hello is None:
        return
    try:
        exporter = InProcessExporter(transport.from_environment())
        exporter.open(*hello)
    except Exception as error:
        sys.exit(f"kvtrail: the export process cannot send anything: {type(error).__name__}: {error}")
    _answer(answers, LENGTH.pack(os.getpid()))
    post_mortem = PostMortem(hello[0])
    unsent: list[EventTuple] = []
    torn = False
    for events in frames:
        if events == TORN:
            torn = True
            continue
        answer, before = UNREADABLE, exporter.refused.copy()
        with suppress(Exception):
            sent = exporter.send(events)
            answer = NOT_SENT if not sent else SENT_TO_KVTRAIL if exporter.is_kvtrail else SENT
            unsent = [] if sent else events
            post_mortem.follow(events)
        refused = (exporter.refused[why] - before[why] for why in REFUSALS)
        _answer(answers, ANSWER.pack(answer, ALL.index(exporter.failure), exporter.left, *refused))
    if unsent:
        exporter.send(unsent)  # the engine cannot send it again
    if last := post_mortem.final_events(monotonic_ns(), torn=torn):  # the same clock in all processes of a machine
        exporter.send(last)
    exporter.close()


def _answer(answers: int, answer: bytes) -> None:
    with suppress(OSError):  # a dead engine reads no answers; data in the pipe is still sent
        os.write(answers, answer)


def _frames_until_the_end(pipe: int, engine_pid: int) -> Iterator[Any]:
    """The frames from the pipe. A thread reads it, so that the end is noticed even while a batch is being sent to a tracer
    that does not answer; `GRACE_S` later the kernel ends this process in any case."""
    frames: SimpleQueue[Any] = SimpleQueue()

    def read() -> None:
        try:
            for frame in _frames(_chunks(pipe, engine_pid)):
                frames.put(frame)
        finally:
            signal.setitimer(signal.ITIMER_REAL, GRACE_S)
            frames.put(None)

    threading.Thread(target=read, daemon=True).start()
    return iter(frames.get, None)


def _frames(chunks: Iterator[bytes]) -> Iterator[Any]:
    """The complete frames in a stream of bytes, and whether the last one is incomplete."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        while len(held) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(held)[0]
            if len(held) < end:
                break
            yield marshal.loads(held[LENGTH.size : end])
            del held[:end]
    if held:
        yield TORN


def _chunks(pipe: int, engine_pid: int) -> Iterator[bytes]:
    """The bytes from the pipe, until it ends; or until the engine has ended and the pipe is empty: a process forked by the
    engine may keep the pipe open."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    with suppress(
        AttributeError, OSError
    ):  # another operating system, or it has already ended, and then the pipe ends, too
        poll.register(os.pidfd_open(engine_pid), select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll()]
        if pipe not in ready:
            return
        if not (chunk := os.read(pipe, _AT_ONCE)):
            return
        yield chunk
