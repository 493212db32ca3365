"""The common part of both sides of a traced connector, between `traced`, which intercepts the calls, and the recorder.

Recording must never break the engine, and an unexpected object costs one event, never the recording. A failure, such as an
attribute that another vLLM names differently or a probe that no longer fits its connector, is logged, counted by kind in the
recorder's heartbeats, and leaves a gap in the numbers of the recorder and of the requests concerned.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from operator import index
from time import monotonic, monotonic_ns
from typing import Any, TypeVar

from kvtrail.connector.known.probe import NO_PROBE, Probe, ProbeEvent
from kvtrail.connector.recording.contexts import RequestContext
from kvtrail.connector.recording.exceptions import cause_of_death, located
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.connector.tracing.handoffs import as_recorded
from kvtrail.connector.tracing.reading import ids_in
from kvtrail.tracer.events.semconv import Kind

logger = logging.getLogger("vllm.kvtrail")

FLUSH_S = 1.0
"""Maximum time that an ending engine waits for its last events to be sent."""
NO_FLUSH_S = 60.0
"""Time without further waits after a wait timed out, so that an engine that keeps running with failing calls is not slowed
down."""
MAX_PROBE_FAILURES = 100
"""Number of consecutive failures of one probe method after which the probe is switched off."""
LOG_AGAIN_S = 600.0
"""Interval after which a failure of the same kind is logged again."""
_RECORDED = "_kvtrail_recorded"
"""Attribute that marks a recorded exception, which may pass through several traced calls."""
Method = TypeVar("Method", bound=Callable[..., None])


def fail_open(kind: str, *, concerns_all: bool = False) -> Callable[[Method], Method]:
    """For methods that record events of this kind. If one fails, its event is counted as not recorded: of the request that is
    among its arguments, or of any request if it `concerns_all`."""

    def decorate(method: Method) -> Method:
        @wraps(method)
        def guarded(self: Instrumentation, *args: Any) -> None:
            if self._recorder is not None:
                try:
                    method(self, *args)
                except Exception:
                    self._not_recorded(kind, None if concerns_all else ids_in(args))

        return guarded  # type: ignore[return-value]  # the same signature

    return decorate


class Instrumentation:
    """One side of one connector object; without a recorder it records nothing.

    Attributes:
        recorder: the recorder.
        source: the encoded attributes that say who recorded.
        sees_ends: whether the probe reports the transfers that a report of the workers ends.
        unprobed: why there is no working probe; None while it works.
    """

    def __init__(
        self, recorder: Recorder | None = None, *, name: str = "", source: bytes = b"", probe: Probe | None = None
    ) -> None:
        """`name` is the connector's, for the log; `source` the encoded attributes that say who recorded."""
        self.recorder, self.source = recorder, source
        self._recorder: Any = recorder  # checked once, in `fail_open`
        self._name = name
        self._probe = probe or Probe()
        self._failing: dict[str, int] = {}
        """Probe methods whose last call failed, with the number of consecutive failures."""
        self._log_again_s: dict[str, float] = {}
        """When a failure of a kind is logged again."""
        self._no_flush_s = float("-inf")
        """Time until which no call waits for events to be sent."""
        self._is_shut_down = False
        self._last_held_bytes: int | None = None
        self.sees_ends = recorder is not None and type(self._probe).ended is not Probe.ended
        self.unprobed = None if probe is not None and type(probe) is not Probe else NO_PROBE
        if recorder is not None:
            recorder.join()

    def on_init(self, connector: Any) -> None:
        """Called after the constructor. Each later heartbeat asks the probe for the bytes that the connector holds, until the
        connector is shut down or deleted."""
        if self._recorder is not None:
            self._ask("made", connector, gap=False)
            ref = weakref.ref(connector)
            self._recorder.holders.append(lambda: self._held_bytes(ref()))

    @fail_open(Kind.FAILURE)
    def on_call_error(self, call: str, start_ns: int, error: Exception, *arguments: Any) -> None:
        """Record that a call of the connector raised, for the request among its arguments, if there is one."""
        if getattr(error, _RECORDED, False):
            return
        ids = ids_in(arguments)
        context = self._recorder.contexts.named(ids[0]) if ids else None
        self._record_error(Kind.FAILURE, self.source, context, start_ns, (call,), error)

    def before_shutdown(self, connector: Any) -> None:
        """Called before `shutdown`: the last chance to read the connector's state."""
        self._last_held_bytes = self._held_bytes(connector)

    @fail_open(Kind.HEARTBEAT)
    def on_shutdown(self, error: BaseException | None = None) -> None:
        """Called after `shutdown`, which vLLM calls while it handles the `error` that ends the engine, if any."""
        if not self._is_shut_down:
            self._is_shut_down = True
            self._recorder.leave(FLUSH_S, ended_by=cause_of_death(error))

    def temporary(self, connector: Any) -> Mapping[str, int]:
        """The probe's counts that must be 0 without requests."""
        return self._ask("temporary", connector) or {}

    def _held_bytes(self, connector: Any) -> int | None:
        if connector is None or self._is_shut_down:
            return self._last_held_bytes
        held: int | None = self._ask(
            "held_bytes", connector, gap=False, answered=lambda held: None if held is None else index(held)
        )
        return held

    def _record(self, kind: Kind, context: RequestContext | None, at_ns: int, values: tuple[Any, ...]) -> None:
        """Record an event without a duration."""
        self._recorder.record(kind, self.source, context, at_ns, at_ns, values)

    def _record_events(self, events: Iterable[ProbeEvent], at_ns: int) -> None:
        """Record the events of a connector, as its probe observed them; block ids only at level `detailed`."""
        contexts, with_blocks = self._recorder.contexts, self._recorder.level.detailed
        for kind, request_id, values in events:
            context = None if request_id is None else contexts.of_id(request_id)
            self._record(kind, context, at_ns, as_recorded(kind, values, contexts.name_of, with_blocks=with_blocks))

    def _record_error(
        self,
        kind: Kind,
        source: bytes,
        context: RequestContext | None,
        start_ns: int,
        values: tuple[Any, ...],
        error: Exception,
    ) -> None:
        self._recorder.record(kind, source, context, start_ns, monotonic_ns(), values, located(error))
        with suppress(AttributeError, TypeError):
            setattr(error, _RECORDED, True)
        if monotonic() >= self._no_flush_s and not self._recorder.flush(FLUSH_S):  # the engine may be about to die
            self._no_flush_s = monotonic() + NO_FLUSH_S

    def _ask(
        self,
        question: str,
        *arguments: Any,
        concerns: Callable[[], Iterable[str] | None] = tuple,
        gap: bool = True,
        answered: Callable[[Any], Any] | None = None,
    ) -> Any:
        """The probe's answer to a question, or the result of `answered` for it; None if it cannot answer.

        Args:
            question: a method of `Probe`.
            concerns: called after a failure; returns the requests concerned.
            gap: whether a whole event is missing then, not only one of its values.
        """
        try:
            answer = getattr(self._probe, question)(*arguments)
            if answered is not None:
                answer = answered(answer)
            if self._failing:
                self._failing.pop(question, None)
            return answer
        except Exception:
            self._probe_failed(question, concerns(), gap=gap)

    # Failures to record. All of these are called while an exception is handled.

    def _probe_failed(self, question: str, ids: Iterable[str] | None = (), *, gap: bool = True) -> None:
        """Handle a failure of the probe. After too many consecutive failures of one question it is switched off."""
        self.unprobed = f"it failed when it was asked for `{question}`: {sys.exception()!r}"
        self._not_recorded(f"probe.{question}", ids, gap=gap)
        self._failing[question] = self._failing.get(question, 0) + 1
        if self._failing[question] >= MAX_PROBE_FAILURES:
            self._failing.clear()
            self._probe, self.sees_ends = Probe(), False
            logger.error(
                "kvtrail: the probe of %s failed %d times in a row and is switched off: facts that only it can observe are"
                " missing from now on",
                self._name,
                MAX_PROBE_FAILURES,
            )
            if self._recorder is not None:
                self._recorder.probes_off[self._name] = None
                self._not_recorded("probe", None)  # transfers that it has shown have no end now

    def _not_recorded(self, kind: str, ids: Iterable[str] | None, *, gap: bool = True) -> None:
        """Count a failure to record, and log it occasionally.

        Args:
            kind: the kind of the event, or `probe.<question>`.
            ids: the requests concerned; None if unknown, so that it may be any open request.
            gap: whether a whole event is missing, not only one of its values.
        """
        if self._recorder is not None:
            with suppress(Exception):
                contexts = self._recorder.contexts
                concerned = list(contexts.open.values()) if ids is None else [contexts.named(each) for each in ids]
                self._recorder.leave_out(kind, concerned if gap else None)
        now_s = monotonic()
        if now_s >= self._log_again_s.get(kind, now_s):
            self._log_again_s[kind] = now_s + LOG_AGAIN_S
            logger.exception(
                "kvtrail: an event of %s could not be recorded (%s); the heartbeats count the failures. The engine is not"
                " affected.",
                self._name,
                kind,
            )
