"""Which engines an answer of the api is about: all, or those of a service, a node or a model."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request

from kvtrail.tracer.store import Reader


def _chosen(
    request: Request,
    service: str = "",
    node: Annotated[str, Query(description="a pod, or the host of an engine without one")] = "",
    model: str = "",
) -> list[str] | None:
    reader: Reader = request.app.state.reader
    wanted = {"service": service, "node": node, "model": model}
    if not any(wanted.values()):
        return None
    return [
        name
        for name, engine in reader.engines().items()
        if all(
            text in ("", {**engine, "node": engine["pod"] or engine["host"]}[field]) for field, text in wanted.items()
        )
    ]


ChosenEngines = Annotated[list[str] | None, Depends(_chosen)]
"""The engines that a request of the api chooses by `service`, `node` and `model`; None if it names none of these."""
