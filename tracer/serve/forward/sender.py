"""What waits to be sent, and the thread that sends it.

A receiver that is away is tried again and again, with longer and longer pauses, or when it says; meanwhile the queue grows up
to its bound, and then the oldest spans are dropped and counted.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from kvtrail.tracer.serve.forward.figures import Dropped, Figures
from kvtrail.tracer.serve.forward.pieces import Piece, joined, size
from kvtrail.tracer.serve.forward.throttled_log import ThrottledLog
from kvtrail.tracer.serve.forward.transport import Transport

logger = logging.getLogger("kvtrail")

MAX_SPANS = 2_048
MAX_BYTES = 1 << 20
"""Of a request. A gRPC server takes 4 MiB unless it is configured otherwise."""
GATHER_S = 0.2
"""How long spans wait for others that go with them."""
TIMEOUT_S = 10.0
"""How long a receiver may take for a request, as in OpenTelemetry's own exporters."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
GIVE_UP_S = 300.0
"""How long one request is tried. What the receiver may take may lie behind what it will never take."""


class Sender:
    """A bounded queue of spans, and the thread that sends them.

    Attributes:
        trouble: why the last request was not taken; None while all is well.
    """

    def __init__(
        self,
        transport: Transport,
        figures: Figures,
        *,
        most_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trouble: str | None = None
        self._transport, self._figures, self._clock = transport, figures, clock
        self._most_bytes = most_bytes
        self._queue: deque[Piece] = deque()
        self._bytes = 0
        self._in_hand = 0
        self._changed = threading.Condition()
        self._end_s: float | None = None
        """When the thread must have ended, once that is known."""
        self._failing, self._dropping = ThrottledLog(clock), ThrottledLog(clock)
        self._thread = threading.Thread(target=self._run, name="forward", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Spans that have not been taken."""
        return len(self._queue) + self._in_hand

    def put(self, pieces: Sequence[Piece]) -> None:
        """Queue spans. Never waits for the receiver."""
        if not pieces:
            return
        with self._changed:
            self._queue.extend(pieces)
            self._bytes += size(pieces)
            dropped = 0
            while self._bytes > self._most_bytes:
                self._bytes -= size([self._queue.popleft()])
                dropped += 1
            self._show()
            self._changed.notify()
        if dropped:
            self._drop(dropped, Dropped.QUEUE_FULL, self.trouble or "the receiver is too slow")

    def close(self, *, drain_s: float) -> None:
        """Send what is queued, for `drain_s` seconds at most, and drop the rest."""
        with self._changed:
            self._end_s = self._clock() + drain_s
            self._changed.notify()
        self._thread.join(drain_s)
        self._transport.close()
        self._thread.join(drain_s)
        with self._changed:
            left = len(self._queue) + self._in_hand
            self._queue.clear()
            self._bytes = self._in_hand = 0
            self._show()
        if left:
            self._drop(left, Dropped.STOPPED, self.trouble or "it is too slow")

    def _run(self) -> None:
        while batch := self._next():
            try:
                self._deliver(batch)
            except Exception as error:  # the next one may go
                self._drop(len(batch), Dropped.REFUSED, f"an error in kvtrail itself: {error!r}")
            with self._changed:
                self._in_hand = 0
                self._show()

    def _next(self) -> list[Piece]:
        """The spans of the next request; none when all is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closing)
            self._changed.wait_for(lambda: len(self._queue) >= MAX_SPANS or self._is_closing, GATHER_S)
            batch: list[Piece] = []
            encoded = 0
            while self._queue and len(batch) < MAX_SPANS and not self._is_over:
                encoded += len(self._queue[0].span)
                if batch and encoded > MAX_BYTES:
                    break
                batch.append(self._queue.popleft())
            self._bytes -= size(batch)
            self._in_hand = len(batch)
            self._show()
        return batch

    def _deliver(self, batch: Sequence[Piece]) -> None:
        """Send a request until it is taken, or will never be."""
        payload = joined(batch)
        give_up_s, pause_s = self._clock() + GIVE_UP_S, FIRST_PAUSE_S
        while True:
            answer = self._transport.send(payload, timeout_s=self._time_left())
            if answer.taken:
                self._taken(len(batch) - answer.rejected, answer.rejected, answer.reason)
                return
            self._figures.failures.inc()
            self.trouble = answer.reason
            if not answer.again:
                self._drop(len(batch), Dropped.REFUSED, answer.reason)
                return
            self._failing.warn("forwarding: the receiver does not take spans, trying again: %s", answer.reason)
            wait_s = max(answer.after_s or 0.0, pause_s * random.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            if self._clock() + wait_s > give_up_s:
                self._drop(len(batch), Dropped.GIVEN_UP, answer.reason)
                return
            if not self._wait(wait_s):
                self._put_back(batch)
                return

    def _put_back(self, batch: Sequence[Piece]) -> None:
        """What could not be sent before the end, so that whoever closes counts it."""
        with self._changed:
            self._queue.extendleft(reversed(batch))

    def _taken(self, spans: int, rejected: int, reason: str) -> None:
        self._figures.sent.inc(spans)
        if self.trouble is not None:
            logger.info("forwarding: the receiver takes spans again")
            self.trouble = None
        if rejected:
            self._drop(rejected, Dropped.REJECTED, reason)

    def _wait(self, seconds: float) -> bool:
        """Wait before the next try. False if there is no time for one."""
        until_s = self._clock() + seconds
        with self._changed:
            while (left_s := until_s - self._clock()) > 0 and not self._is_over:
                if self._end_s is not None:
                    left_s = min(left_s, self._end_s - self._clock())
                self._changed.wait(left_s)
            return not self._is_over

    def _time_left(self) -> float:
        return TIMEOUT_S if self._end_s is None else max(0.1, min(TIMEOUT_S, self._end_s - self._clock()))

    @property
    def _is_closing(self) -> bool:
        return self._end_s is not None

    @property
    def _is_over(self) -> bool:
        return self._end_s is not None and self._clock() >= self._end_s

    def _drop(self, spans: int, why: Dropped, reason: str) -> None:
        self._figures.dropped.labels(why).inc(spans)
        self._dropping.warn("forwarding: %s spans are dropped (%s): %s", spans, why, reason)

    def _show(self) -> None:
        self._figures.queue_spans.set(self.queued)
        self._figures.queue_bytes.set(self._bytes)
