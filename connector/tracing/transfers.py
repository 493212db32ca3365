"""What is told of copies between KV blocks and a connector's store: planned, numbered, carried out."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from time import time_ns
from typing import Any

from kvtrail.connector.known.probe import Moved, Planned
from kvtrail.connector.recording.contexts import RequestContext
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.tracer.model.semconv import Kind

logger = logging.getLogger("vllm.kvtrail")

_LOAD_PLAN, _STORE_PLAN = Kind.LOAD_PLAN.value, Kind.STORE_PLAN.value  # an enum's own way to its value is slow
MOST_JOBS = 65_536
"""Numbered transfers of which the request is remembered."""
HANDED_OVER = "_kvtrail_places"
"""Attribute of a connector's metadata by which the scheduler's side tells the workers of callers' traces."""

Places = dict[str, tuple[bytes, bool]]
"""By request: its root in its caller's trace, and whether that is sampled."""


class Transfers:
    """Those of one connector object. Whoever calls it sees to it that what fails here breaks nothing."""

    def __init__(self, recorder: Recorder | None, source: bytes) -> None:
        """`source` are the encoded attributes that say who recorded; without a recorder, nothing may be told."""
        self._recorder: Any = recorder
        self._source = source
        self._jobs: OrderedDict[int, str] = OrderedDict()
        """The requests of numbered transfers; those that have ended are kept for a while, for a second report of them."""

    def plan_loads(self, plans: Iterable[Planned], at_ns: int, places: Places) -> None:
        """What the workers are told to load. Adds to `places` those requests whose trace is a caller's."""
        for request_id, start, tokens, blocks, keys, job, _ in plans:
            context = self._planned(request_id, job, places)
            values = (start, tokens, blocks if context.detailed else None, keys, job)
            self._recorder.record(_LOAD_PLAN, self._source, context, at_ns, at_ns, values)

    def plan_stores(self, plans: Iterable[Planned], at_ns: int, places: Places) -> None:
        """The same, to store."""
        for request_id, start, tokens, blocks, keys, job, present in plans:
            context = self._planned(request_id, job, places)
            values = (start, tokens, blocks if context.detailed else None, keys, job, present)
            self._recorder.record(_STORE_PLAN, self._source, context, at_ns, at_ns, values)

    def over(self, kind: Kind, number: int, more: tuple[Any, ...]) -> None:
        """A numbered transfer has ended, or is waited for; nothing is known of one that was not planned."""
        if (request_id := self._jobs.get(number)) is not None:
            context, at_ns = self._recorder.contexts.of_id(request_id), time_ns()
            self._recorder.record(kind.value, self._source, context, at_ns, at_ns, (number, *more))

    def moved(self, kind: Kind, metadata: Any, start_ns: int, moved: Sequence[Moved]) -> None:
        """What a worker has copied, in the callers' traces of which the scheduler's side tells."""
        end_ns = time_ns()
        for request_id, place in getattr(metadata, HANDED_OVER, {}).items():
            self._recorder.contexts.adopt(request_id, *place)
        for request_id, *values in moved:
            context = self._recorder.contexts.of_id(request_id)
            self._recorder.record(kind.value, self._source, context, start_ns, end_ns, (*values, None))

    def hand_over(self, places: Places, metadata: Any) -> None:
        """Tell workers in other processes the traces of what they copy that are a caller's; others they can derive."""
        try:
            setattr(metadata, HANDED_OVER, places)
        except (AttributeError, TypeError):
            logger.debug("kvtrail: %s takes no note of callers' traces for its workers", type(metadata))

    def _planned(self, request_id: str, job: int | None, places: Places) -> RequestContext:
        context: RequestContext = self._recorder.contexts.of_id(request_id)
        if job is not None:
            self._jobs[job] = request_id
            if len(self._jobs) > MOST_JOBS:
                self._jobs.popitem(last=False)
        if context.has_caller:
            places[request_id] = (context.root, context.sampled)
        return context
