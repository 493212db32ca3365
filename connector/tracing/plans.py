"""Records a connector's plans and evictions, as observed by a probe in a step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from time import monotonic_ns
from typing import Any

from kvtrail.connector.known.probe import Evicted, Planned, Seen
from kvtrail.connector.recording.contexts import RequestContext
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.connector.tracing.reading import ids_in
from kvtrail.connector.tracing.steps import run_of
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.semconv import Kind

logger = logging.getLogger("vllm.kvtrail")

MAX_JOBS = 65_536
"""Maximum number of numbered transfers that are remembered with their request."""
CALLERS = "_kvtrail_callers"
"""Attribute of a connector's metadata in which the scheduler's side passes the requests' contexts in their callers'
traces."""


class Plans:
    """Records the plans, the numbered transfers and the evictions of one connector object."""

    def __init__(self, recorder: Recorder, source: bytes, not_recorded: Callable[[str, Iterable[str]], None]) -> None:
        """`source` is the encoded attributes that say who recorded; `not_recorded` is called, while an exception is handled,
        with the kind of an event that could not be recorded and the requests that it concerns."""
        self._recorder, self._source, self._not_recorded = recorder, source, not_recorded
        self._jobs: BoundedDict[int, str] = BoundedDict(MAX_JOBS)
        """The requests of numbered transfers, ended ones included: a second report of one may follow."""

    def requests(self) -> set[str]:
        """The requests of the numbered transfers."""
        return set(self._jobs.values())

    def seen(self, seen: Seen, metadata: Any, output: Any, at_ns: int) -> None:
        """Record the probe's observations of a step, in order: evictions come before the stores that need the space."""
        loads, stores, evicted, flushed, _ = seen
        callers: dict[str, tuple[bytes, bool]] = {}
        for plan in loads:
            self._planned(Kind.LOAD_PLAN, plan, output, at_ns, callers)
        self.evicted(evicted, at_ns)
        for plan in stores:
            self._planned(Kind.STORE_PLAN, plan, output, at_ns, callers)
        if callers:  # workers in other processes cannot derive these contexts
            try:
                setattr(metadata, CALLERS, callers)
            except (AttributeError, TypeError):
                logger.debug("kvtrail: %s cannot carry callers' traces to its workers", type(metadata))
        for number in flushed:
            self.job(Kind.FLUSH, number, ())

    def evicted(self, chunks: Iterable[Evicted], at_ns: int) -> None:
        """Record the chunks that left the store."""
        for key, tokens, size, request_id, tier in chunks:
            pusher = None if request_id is None else self._recorder.contexts.open.get(request_id)
            name = None if pusher is None else pusher.name
            self._record(Kind.EVICT, None, at_ns, (key, tokens, size, tier, name))

    def job(self, kind: Kind, number: int, more: tuple[Any, ...]) -> None:
        """Record the end of a numbered transfer, or a wait for it. The request of an unplanned transfer is unknown."""
        request_id = self._jobs.get(number)
        context = None if request_id is None else self._recorder.contexts.of_id(request_id)
        self._record(kind, context, monotonic_ns(), (number, *more))

    def _planned(
        self, kind: Kind, plan: Planned, output: Any, at_ns: int, callers: dict[str, tuple[bytes, bool]]
    ) -> None:
        """Record a planned load or store. Adds the request to `callers` if its trace is a caller's: its root there, and
        whether that is sampled."""
        try:
            request_id, start, tokens, blocks, keys, job, present, by_group, group_starts = plan
            context: RequestContext = self._recorder.contexts.of_id(request_id)
            if job is not None:
                self._jobs[job] = request_id
            if context.has_caller:
                callers[request_id] = (context.root, context.sampled)
            in_blocks = (blocks, by_group, group_starts) if context.detailed else (None, None, None)
            values = (start, tokens, *in_blocks, keys, job, *run_of(context, output))
            self._record(kind, context, at_ns, values if kind is Kind.LOAD_PLAN else (*values, present))
        except Exception:
            self._not_recorded(kind, ids_in((plan,)))

    def _record(self, kind: Kind, context: RequestContext | None, at_ns: int, values: tuple[Any, ...]) -> None:
        self._recorder.record(kind, self._source, context, at_ns, at_ns, values)
