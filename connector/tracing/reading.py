"""What is read of vLLM's objects, whatever version they are of."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any


def ids_in(arguments: Iterable[Any]) -> tuple[str, ...]:
    """The id of the request among the arguments, or none."""
    for each in arguments:
        with suppress(Exception):
            request_id = each if type(each) is str else getattr(each, "request_id", None)
            if type(request_id) is str:
                return (request_id,)
    return ()


def ids_of_step(output: Any) -> set[str] | None:
    """The requests of a `SchedulerOutput`; None if it does not say."""
    try:
        return {*output.num_scheduled_tokens, *(output.preempted_req_ids or ())}
    except Exception:
        return None


def hit_sources(connector: Any, request: Any, external: int) -> tuple[str, ...] | None:
    """Where external tokens come from, by the connector's own account; None if it gives none."""
    try:
        counted = connector.get_external_cache_hit_sources(request, external)
        return tuple(f"{source.value}:{int(tokens)}" for source, tokens in counted.items())
    except Exception:  # it is asked for this one span only: what fails here must not end the recording
        return None
