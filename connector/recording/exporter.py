"""The way out of the engine's process for what a recorder holds.

Encoding and sending cost ten times what recording does, and gRPC brings threads of its own. So the recorder's thread only
hands its batches to a helper process through a pipe (`Helper`), and waits there for the answer. Where no process can be
started, the thread does the work itself (`InProcess`).
"""

from __future__ import annotations

import logging
import marshal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any, Protocol

import kvtrail
from kvtrail.connector.recording import transport
from kvtrail.connector.recording.context import Recorded, number_of
from kvtrail.connector.recording.encoder import Encoder, batches, spans_in_a_request

logger = logging.getLogger("vllm.kvtrail")

SLICE = 32
"""Events encoded in one go before the thread offers the interpreter to others: about 0.3 ms."""
LENGTH = struct.Struct("<I")
"""Before every frame of the pipe: its length in bytes."""
SENT, NOT_SENT, UNREADABLE = b"+", b"-", b"!"
"""The helper's answers to a batch."""


class Outlet(Protocol):
    """Takes a recorder's batches, one at a time, on the recorder's thread."""

    endpoint: str

    def open(self, resource: Mapping[str, Any], span_id_base: int) -> None:
        """Say who records: the attributes of the resource, and where the ids of its spans begin."""

    def send(self, events: Sequence[Recorded]) -> bool:
        """True once the receiver has acknowledged them. Blocks for the exporter's timeout at most.

        Raises:
            ValueError: the events cannot be encoded; sending them again would not help.
        """

    def close(self) -> None:
        """Give up what is being sent."""


class InProcess:
    """Encodes and sends on the recorder's own thread."""

    def __init__(self, sender: transport.Transport) -> None:
        self.endpoint = sender.endpoint
        self._sender = sender
        self._delivery = transport.Delivery(sender)
        self._most = spans_in_a_request()

    def open(self, resource: Mapping[str, Any], span_id_base: int) -> None:
        self._encoder = Encoder(resource, span_id_base)

    def send(self, events: Sequence[Recorded]) -> bool:
        requests = [self._encoder.request(self._spans(batch)) for batch in batches(events, self._most)]
        return self._delivery.send(number_of(events[0]), requests)

    def _spans(self, batch: Sequence[Recorded]) -> Iterator[bytes]:
        for few in batches(batch, SLICE):
            yield self._encoder.spans(few)
            time.sleep(0)

    def close(self) -> None:
        self._sender.close()


class Helper:
    """A process that encodes and sends; see `export_process`. It ends when the engine does, however that comes."""

    def __init__(self) -> None:
        transport.check_environment()
        spans_in_a_request()  # a wrong number is refused here, and not in the helper
        self.endpoint = transport.endpoint()
        self._who = b""
        self._start()

    def open(self, resource: Mapping[str, Any], span_id_base: int) -> None:
        known = {k: v for k, v in resource.items() if isinstance(v, bool | int | float | str)}
        self._who = marshal.dumps((known, span_id_base))
        self._write(self._who)

    def send(self, events: Sequence[Recorded]) -> bool:
        batch = list(events)
        try:
            answer = self._ask(marshal.dumps(batch))  # type: ignore[arg-type]  # a tuple of what it knows
        except ValueError:
            answer = UNREADABLE
        if answer == UNREADABLE:  # a connector's number may be numpy's
            answer = self._ask(marshal.dumps([(*event[:-1], tuple(map(_plain, event[-1]))) for event in batch]))
        if answer == UNREADABLE:
            raise ValueError("the helper process could not encode them")
        return answer == SENT

    def close(self) -> None:
        """Let the helper end, or end it if it still tries to send."""
        self._closed = True
        try:
            self._frames.close()
        except OSError:
            logger.debug("kvtrail: the helper process had gone")
        try:
            self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, frame: bytes) -> bytes:
        if self._closed:
            return NOT_SENT
        try:
            if self._process.poll() is not None:
                self._start()
                self._write(self._who)
            self._write(frame)
            return bytes(self._answers.read(1))
        except (OSError, ValueError):  # it has died, or was closed meanwhile
            return NOT_SENT

    def _start(self) -> None:
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]);"
            "from kvtrail.connector.recording.export_process import main; main()"
        )
        self._closed = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, str(Path(kvtrail.__file__).parents[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # a Ctrl-C is for the engine, which then says goodbye in good order
        )
        self._frames: Any = self._process.stdin
        self._answers: Any = self._process.stdout

    def _write(self, frame: bytes) -> None:
        rest = memoryview(LENGTH.pack(len(frame)) + frame)
        while rest:
            rest = rest[self._frames.write(rest) :]


def _plain(value: Any) -> Any:
    """A value as plain Python; what is neither text nor number is unknown."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    try:
        return index(value)
    except TypeError:
        return None


def from_environment() -> Outlet:
    """A helper process; without one, this process itself.

    Raises:
        ValueError, ImportError: the OTLP variables ask for what there is not; see `transport.check_environment` and
            `encode.spans_in_a_request`.
    """
    try:
        return Helper()
    except OSError as error:
        logger.warning("kvtrail: no helper process can be started (%s); spans are encoded in the engine's own", error)
        return InProcess(transport.from_environment())
