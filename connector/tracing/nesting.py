"""Calls that a connector passes on to child connectors: their spans are children of its span, and a request's end is recorded
once, by one of the children, with the combined answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from secrets import token_bytes
from typing import Any

from kvtrail.connector.known import capabilities_of
from kvtrail.connector.tracing.scheduler_side import SchedulerInstrumentation
from kvtrail.tracer.events.capabilities import Capability

_SPAN_ID_BYTES = 8


class Nesting:
    """Mixed in before `Tracing`, for a connector that is known to have child connectors."""

    _kvtrail_scheduler: SchedulerInstrumentation
    _kvtrail_children: str
    """The attribute that lists the child connectors."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        _end_together(self)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        with _one_span(self):
            return super().get_num_new_matched_tokens(request, num_computed_tokens)  # type: ignore[misc]

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> Any:
        with _one_span(self):
            return super().update_state_after_alloc(request, blocks, num_external_tokens)  # type: ignore[misc]


@contextmanager
def _one_span(connector: Any) -> Iterator[None]:
    """A context in which the connector records one span, with an id that is known in advance: it is the parent of the spans
    of its traced child connectors."""
    span_id = token_bytes(_SPAN_ID_BYTES)
    with ExitStack() as stack:
        stack.enter_context(connector._kvtrail_scheduler.placed(span_id=span_id))
        for child in _traced_children(connector):
            stack.enter_context(child._kvtrail_scheduler.placed(parent_id=span_id))
        yield


def _end_together(connector: Any) -> None:
    """The child that records the combined answer at a request's end: the one that hands requests on to another engine, or
    else the first."""
    own = connector._kvtrail_scheduler
    children = [each for each in _traced_children(connector) if each._kvtrail_scheduler.recorder is not None]
    if own.recorder is None or not children:
        return
    hands_on = (each for each in children if Capability.HANDS_ON in capabilities_of(each._kvtrail_plain))
    own.ends_by = next(hands_on, children[0])._kvtrail_scheduler
    for child in children:
        child._kvtrail_scheduler.ends_by = None


def _traced_children(connector: Any) -> list[Any]:
    children = getattr(connector, connector._kvtrail_children, ())
    return [child for child in children if getattr(child, "_kvtrail_scheduler", None) is not None]
