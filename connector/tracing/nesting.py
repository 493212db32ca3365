"""Calls that a connector passes on to connectors of its own: their spans are children of its span."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from secrets import token_bytes
from typing import Any

from kvtrail.connector.tracing.scheduler_side import SchedulerInstrumentation

_SPAN_ID_BYTES = 8


class Nesting:
    """Mixed in before `Tracing`, for a connector that is known to have connectors of its own."""

    _kvtrail_scheduler: SchedulerInstrumentation
    _kvtrail_children: str
    """The attribute that lists them."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        with _one_span(self):
            return super().get_num_new_matched_tokens(request, num_computed_tokens)  # type: ignore[misc]

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> Any:
        with _one_span(self):
            return super().update_state_after_alloc(request, blocks, num_external_tokens)  # type: ignore[misc]


@contextmanager
def _one_span(connector: Any) -> Iterator[None]:
    """What the connector records inside is one span, with an id that is known before it ends: it is the parent of what its
    own connectors record meanwhile, those that are traced."""
    span_id = token_bytes(_SPAN_ID_BYTES)
    with ExitStack() as stack:
        stack.enter_context(connector._kvtrail_scheduler.placed(span_id=span_id))
        for child in getattr(connector, connector._kvtrail_children, ()):
            if (inner := getattr(child, "_kvtrail_scheduler", None)) is not None:
                stack.enter_context(inner.placed(parent_id=span_id))
        yield
