"""Exporters: what a recorder's thread gives its batches to.

Encoding and sending cost ten times what recording does, and gRPC brings threads of its own. So the thread only passes
batches to the export process through a pipe (`ExportProcess`), and waits for the answer. Where no process can be started,
it encodes and sends them itself (`InProcessExporter`).
"""

from __future__ import annotations

import logging
import marshal
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import kvtrail
from kvtrail.connector.recording import environment, transport
from kvtrail.connector.recording.encoder import Encoder
from kvtrail.connector.recording.ring import EventTuple, sequence_of

logger = logging.getLogger("vllm.kvtrail")

LENGTH = struct.Struct("<I")
"""Before every frame of the pipe: its length in bytes."""
SENT, NOT_SENT, UNREADABLE = b"+", b"-", b"!"
"""The export process's answers to a batch."""


class Exporter(Protocol):
    """Exports a recorder's batches, one at a time, on the recorder's thread."""

    endpoint: str

    def open(self, resource: Mapping[str, Any], span_id_base: int, base_ns: int) -> None:
        """Called once, first: the attributes of the recorder's resource, where the ids of its spans begin, and the Unix time
        at which the monotonic clock, by which events are timed, was 0."""

    def send(self, events: Sequence[EventTuple]) -> bool:
        """True once the receiver has acknowledged them. Blocks for the exporter's timeout at most. A batch that was not
        acknowledged comes again, unchanged.

        Raises:
            Exception: the events cannot be encoded as they are, and none of them has been sent; see `plain`.
        """

    def close(self) -> None:
        """Give up what is being sent."""


class InProcessExporter:
    """Encodes and sends on the thread that calls it."""

    def __init__(self, sender: transport.Transport) -> None:
        self.endpoint = sender.endpoint
        self._transport = sender
        self._batch_size = transport.batch_size()
        self._batch = -1
        self._acknowledged = 0

    def open(self, resource: Mapping[str, Any], span_id_base: int, base_ns: int) -> None:
        self._encoder = Encoder(resource, span_id_base, base_ns)

    def send(self, events: Sequence[EventTuple]) -> bool:
        """Of a batch that comes again, only the requests that were not acknowledged are sent."""
        requests = list(self._encoder.requests(events, self._batch_size))
        batch = sequence_of(events[0])
        if batch != self._batch:
            self._batch, self._acknowledged = batch, 0
        for request in requests[self._acknowledged :]:
            if not self._transport.send(request):
                return False
            self._acknowledged += 1
        return True

    def close(self) -> None:
        self._transport.close()


class ExportProcess:
    """A process that encodes and sends; see `export_process`. It is replaced if it dies, and ends when the engine does."""

    def __init__(self) -> None:
        self._environ = environment.usable()  # so that what is wrong is said here, and not in the process
        self.endpoint = environment.endpoint(self._environ)
        self._hello = b""
        self._start()

    def open(self, resource: Mapping[str, Any], span_id_base: int, base_ns: int) -> None:
        known = {k: v for k, v in resource.items() if isinstance(v, bool | int | float | str)}
        self._hello = marshal.dumps((known, span_id_base, base_ns))
        self._write(self._hello)

    def send(self, events: Sequence[EventTuple]) -> bool:
        answer = self._ask(marshal.dumps(list(events)))  # type: ignore[arg-type]  # a tuple of types that it knows
        if answer == UNREADABLE:
            raise ValueError("the export process could not encode them")
        return answer == SENT

    def close(self) -> None:
        """Let the process end, or kill it if it is still trying to send."""
        self._closed = True
        try:
            self._frames.close()
        except OSError:
            logger.debug("kvtrail: the export process was gone already")
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
                self._write(self._hello)
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
            env=self._environ,
            bufsize=0,
            start_new_session=True,  # a Ctrl-C is for the engine, which then says goodbye itself
        )
        self._frames: Any = self._process.stdin
        self._answers: Any = self._process.stdout

    def _write(self, frame: bytes) -> None:
        rest = memoryview(LENGTH.pack(len(frame)) + frame)
        while rest:
            rest = rest[self._frames.write(rest) :]


def from_environment() -> Exporter:
    """An export process, or, if none can be started, an exporter in this process.

    Raises:
        ImportError: neither is possible without the SDK's exporter.
    """
    try:
        return ExportProcess()
    except OSError as error:
        logger.warning("kvtrail: no export process can be started (%s); the engine's own encodes the spans", error)
        return InProcessExporter(transport.from_environment())
