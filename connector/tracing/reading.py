"""Reads values from vLLM's objects, for any version."""

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
    """The requests of a `SchedulerOutput`; None if it does not have them."""
    try:
        return {*output.num_scheduled_tokens, *(output.preempted_req_ids or ())}
    except Exception:
        return None


def hit_sources(connector: Any, request: Any, external: int) -> tuple[str, ...] | None:
    """The source of external tokens according to the connector; None if it names none."""
    try:
        counted = connector.get_external_cache_hit_sources(request, external)
        return tuple(f"{source.value}:{int(tokens)}" for source, tokens in counted.items())
    except Exception:  # it is called only for this one span: a failure must not end the recording
        return None
