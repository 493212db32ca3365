"""Exporters, which receive the batches of a recorder's thread.

Encoding and sending cost ten times as much as recording, and gRPC starts its own threads. So the thread only passes
batches to the export process through a pipe (`ExportProcess`), and waits for the answer. If no process can be started,
it encodes and sends them itself (`InProcessExporter`).
"""

from __future__ import annotations

import logging
import marshal
import os
import struct
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import kvtrail
from kvtrail.connector.recording import environment, transport
from kvtrail.connector.recording.encoder import Encoder, Part
from kvtrail.connector.recording.ring import EventTuple, sequence_of
from kvtrail.connector.recording.send_failures import ALL, SendFailure
from kvtrail.connector.recording.transport import REFUSALS, Refused
from kvtrail.tracer.events.losses import Lost

logger = logging.getLogger("vllm.kvtrail")

FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 300.0
"""Wait before a dead export process is replaced, doubled each time."""
STEADY_S = 60.0
"""Lifetime after which the death of an export process is not attributed to its start."""
_LAUNCHER = """
import os, sys
if os.fork():
    os._exit(0)  # so that the process is no descendant of the engine: vLLM kills its own when it shuts down
sys.path.insert(0, sys.argv[1])
from kvtrail.connector.recording.export_process import main
main(int(sys.argv[2]))
"""

LENGTH = struct.Struct("<I")
"""The header of every frame in the pipe: its length in bytes."""
SENT, SENT_TO_KVTRAIL, NOT_SENT, UNREADABLE = b"+", b"k", b"-", b"!"
"""The export process's answers to a batch."""
ANSWER = struct.Struct("<cBI" + "I" * len(REFUSALS))
"""An answer; the reason of the last failure, an index into `send_failures.ALL`; the number of the batch's unsent sequence
numbers; and the number of refused ones, by `REFUSALS`."""


class Exporter:
    """Exports a recorder's batches, one at a time, on the recorder's thread.

    Attributes:
        endpoint: their destination.
        is_kvtrail: whether the receiver of the last acknowledged batch identifies itself as kvtrail; None before the first.
        refused: number of sequence numbers that the receiver refused even individually, by reason.
        left: number of the last batch's events that it has neither acknowledged nor refused; None if unknown.
        failure: why the last failed batch was not accepted.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.is_kvtrail: bool | None = None
        self.refused: Counter[Lost] = Counter()
        self.left: int | None = 0
        self.failure = SendFailure.UNKNOWN

    def open(self, resource: Mapping[str, Any], span_id_base: int, base_ns: int) -> None:
        """Called once, first: the attributes of the recorder's resource, the base of its span ids, and the Unix time at which
        the monotonic clock of the events was 0."""

    def send(self, events: Sequence[EventTuple]) -> bool:
        """Returns True if the receiver has acknowledged or refused all events. Blocks at most for the exporter's timeout. The
        caller repeats a failed batch unchanged. An empty batch is also sent: its acknowledgement identifies the receiver.

        Raises:
            Exception: the events cannot be encoded unchanged, and none of them has been sent; see `values`.
        """
        return True

    def close(self) -> None:
        """Abort the current send."""


class InProcessExporter(Exporter):
    """Encodes and sends on the thread that calls it."""

    def __init__(self, sender: transport.Transport) -> None:
        super().__init__(sender.endpoint)
        self._transport = sender
        self._batch_size = transport.batch_size()
        self._batch = -1
        self._pending: deque[Part] = deque()
        """The rest of the batch."""

    def open(self, resource: Mapping[str, Any], span_id_base: int, base_ns: int) -> None:
        self._encoder = Encoder(resource, span_id_base, base_ns)

    def send(self, events: Sequence[EventTuple]) -> bool:
        """Only the unacknowledged part of a repeated batch is sent. A refused request is sent in halves, down to the single
        span, so that it cannot block later events."""
        batch = sequence_of(events[0]) if events else -1
        if batch != self._batch or not events:
            self._batch, self._pending = -1, deque()
            self._pending.extend(self._encoder.parts(events, self._batch_size))
            self._batch = batch
        while self._pending:
            part = self._pending[0]
            try:
                is_sent = self._transport.send(self._encoder.request(part))
            except Refused as refusal:
                if len(part) > 1:
                    half = len(part) // 2
                    self._pending[0] = part[half:]
                    self._pending.appendleft(part[:half])
                    continue
                is_sent = bool(part) and self._takes_anything()
                self.refused[refusal.why] += is_sent * sum(numbers for _, numbers in part)
            else:
                self.is_kvtrail = self._transport.is_kvtrail if is_sent else self.is_kvtrail
            if not is_sent:
                break
            self._pending.popleft()
        self.left, self.failure = sum(n for part in self._pending for _, n in part), self._transport.failure
        return not self._pending

    def _takes_anything(self) -> bool:
        """Whether the receiver accepts a request without spans: if not, the refusal is not about the request's content."""
        try:
            return self._transport.send(self._encoder.request([]))
        except Refused:
            return False

    def close(self) -> None:
        self._transport.close()


class ExportProcess(Exporter):
    """A process that encodes and sends; see `export_process`. It is replaced if it dies, and ends soon after the engine.

    Attributes:
        pid: the id of the process; None until it has answered.
    """

    def __init__(self) -> None:
        self._environ = environment.usable()  # so that errors are reported here, not in the process
        super().__init__(environment.endpoint(self._environ))
        self.pid: int | None = None
        self._hello = b""
        self._closed = self._gone = False
        self._pause_s, self._started_s = FIRST_PAUSE_S, 0.0
        self._start()

    def open(self, resource: Mapping[str, Any], span_id_base: int, base_ns: int) -> None:
        self._hello = marshal.dumps((dict(resource), span_id_base, base_ns))
        try:
            self._write(self._hello)
        except OSError:  # it has already died
            self._lose()

    def send(self, events: Sequence[EventTuple]) -> bool:
        answer = self._ask(marshal.dumps(list(events)))  # type: ignore[arg-type]  # a tuple of types that it knows
        if answer == UNREADABLE:
            raise ValueError("the export process could not encode them")
        if answer == NOT_SENT:
            return False
        self.is_kvtrail = answer == SENT_TO_KVTRAIL
        return True

    def close(self) -> None:
        """Let the process end: it detects the end of the pipe."""
        self._closed = True
        with suppress(OSError):  # it may have ended
            self._frames.close()

    def _ask(self, frame: bytes) -> bytes:
        self.left = None
        if self._closed or (self._gone and not self._start_again()):
            return NOT_SENT
        try:
            self._write(frame)
            if self.pid is None and len(answer := self._answers.read(LENGTH.size)) == LENGTH.size:
                (self.pid,) = LENGTH.unpack(answer)
            if answer := self._read_answer():
                return answer
        except (OSError, ValueError):  # it has died, or was closed in the meantime
            pass
        self._lose()
        return NOT_SENT

    def _read_answer(self) -> bytes:
        """The answer to a frame, after refused events are counted; empty if the process has died."""
        read = b""
        while len(read) < ANSWER.size and (more := self._answers.read(ANSWER.size - len(read))):
            read += more
        if len(read) < ANSWER.size:
            return b""
        answer, why, self.left, *refused = ANSWER.unpack(read)
        self.failure = ALL[why]
        self.refused.update(dict(zip(REFUSALS, refused, strict=True)))
        return bytes(answer)

    def _start(self) -> None:
        """Start the process.

        Raises:
            OSError: the system refuses.
        """
        self._started_s, self.pid = monotonic(), None
        launcher = subprocess.Popen(
            [sys.executable, "-P", "-c", _LAUNCHER, str(Path(kvtrail.__file__).parents[1]), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environ,
            bufsize=0,
            start_new_session=True,  # a Ctrl-C is for the engine, which then sends its end record itself
        )
        self._frames: Any = launcher.stdin
        self._answers: Any = launcher.stdout
        launcher.wait()

    def _start_again(self) -> bool:
        """Restart the dead process, unless it has died too often; returns whether there is a process."""
        if monotonic() < self._again_s:
            return False
        try:
            self._start()
            self._write(self._hello)
        except OSError:
            self._lose()
            return False
        self._gone = False
        return True

    def _lose(self) -> None:
        """Handle the death of the process: the wait before the next one is longer if it died early."""
        if self._closed:
            return
        for pipe in (self._frames, self._answers):
            with suppress(OSError):
                pipe.close()
        now_s, self._gone = monotonic(), True
        self._pause_s = FIRST_PAUSE_S if now_s - self._started_s >= STEADY_S else min(2 * self._pause_s, MAX_PAUSE_S)
        self._again_s = now_s + self._pause_s
        logger.warning("kvtrail: the export process has ended; the next one starts in %.0f s", self._pause_s)

    def _write(self, frame: bytes) -> None:
        rest = memoryview(LENGTH.pack(len(frame)) + frame)
        while rest:
            rest = rest[self._frames.write(rest) :]


def from_environment() -> Exporter:
    """An export process, or, if none can be started, an exporter in this process.

    Raises:
        ImportError: neither is possible without the SDK's exporter; the text says what to install.
    """
    environment.check_exporter(environment.usable())
    try:
        return ExportProcess()
    except OSError as error:
        logger.warning("kvtrail: no export process can be started (%s); the engine's own encodes the spans", error)
        return InProcessExporter(transport.from_environment())
