"""A real sidecar, killed with -9 while it receives: it keeps what it acknowledged, and makes nothing else of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress

import httpx
import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

import recorded_runs
from damages import damaged, sent
from processes import Tracer
from recorded_runs import Run
from sidecars import line, live

from kvtrail.tracer.ingest import otlp_json

Start = Callable[..., Tracer]


def found_across_a_kill(start: Start, run: Run, *, damages: tuple[str, ...] = ()) -> set[tuple[str, str]]:
    """What a sidecar finds that is killed in the middle of a batch, and gets that one again when it is back."""
    delivery = damaged(sent(run.events), damages, 0)
    payloads = [otlp_json.to_protobuf(json.loads(line(batch.events))) for batch in delivery.in_order()]
    middle = len(payloads) // 2
    first = start()
    for payload in payloads[:middle]:
        first.post(payload)

    def post() -> None:
        with suppress(httpx.HTTPError):
            first.post(payloads[middle])

    posting = threading.Thread(target=post)
    posting.start()
    first.kill()
    posting.join()
    second = start(store=first.store)
    for payload in payloads[middle:]:
        second.post(payload)
    return {(finding["rule"], finding["request"]) for finding in second.get("/api/findings", limit=1000)}


def test_a_killed_sidecar_causes_no_findings(start_tracer: Start) -> None:
    run = recorded_runs.healthy("MultiConnector", "mixed", 0)
    assert found_across_a_kill(start_tracer, run, damages=("mix-within", "repeat-some")) == set()


def test_nor_does_it_forget_what_a_request_did_before(start_tracer: Start) -> None:
    """Each request's lookups and plans lie on both sides of the kill."""
    run = recorded_runs.faulty("retried-lookup", "OffloadConnector", "retry", 1)
    known = {(rule, request) for rule, request, _ in live(sent(run.events)).found}
    assert {rule for rule, _ in known} == {"retried-lookup"}
    assert found_across_a_kill(start_tracer, run) == known
