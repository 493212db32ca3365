"""Which engines an answer of the api is about: all, or one, or those of a service, a node or a model."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request

from kvtrail.tracer.store import Reader


def _chosen(
    request: Request,
    engine: str = "",
    service: str = "",
    node: Annotated[str, Query(description="a pod, or the host of an engine without one")] = "",
    model: str = "",
) -> list[str] | None:
    reader: Reader = request.app.state.reader
    wanted = {field: text for field, text in {"service": service, "node": node, "model": model}.items() if text}
    if not wanted:
        return [engine] if engine else None
    return [
        name
        for name, about in reader.engines().items()
        if engine in ("", name)
        and all({**about, "node": about["pod"] or about["host"]}[field] == text for field, text in wanted.items())
    ]


ChosenEngines = Annotated[list[str] | None, Depends(_chosen)]
"""The engines that a request of the api chooses by `engine`, `service`, `node` and `model`; None if it names none of them."""
