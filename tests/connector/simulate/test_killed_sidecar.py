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
from damages import Delivery, damaged, sent
from processes import Tracer, until
from sidecars import line, live

from kvtrail.tracer.ingest import otlp_json

TOGETHER = 8
"""Batches of a request."""


def test_a_killed_sidecar_makes_up_no_finding_and_forgets_none(start_tracer: Callable[..., Tracer]) -> None:
    """It is killed in the middle of a batch, and gets that one again when it is back. Of two engines it hears, one has a
    fault, and each of its requests has lookups and plans on both sides of the kill; the other one has none."""
    sound = recorded_runs.healthy("MultiConnector", "mixed", 0, engine="sound")
    events = recorded_runs.faulty("retried-lookup", "OffloadConnector", "retry", 1).events
    last_ns = max(event.end_ns for event in events if event.request)  # the engine is idle for a quarter of an hour then
    faulty = sent(event for event in events if event.end_ns <= last_ns)
    known = {(rule, request) for rule, request, _ in live(faulty).found}
    assert {rule for rule, _ in known} == {"retried-lookup"}
    disturbed = damaged(sent(sound.events), ("mix-within", "repeat-some"), 0)
    batches = Delivery(batches=(*faulty.batches, *disturbed.batches)).in_order()
    parts = [batches[first : first + TOGETHER] for first in range(0, len(batches), TOGETHER)]
    payloads = [
        otlp_json.to_protobuf(json.loads(line([event for batch in part for event in batch.events]))) for part in parts
    ]
    middle = len(payloads) // 2
    first = start_tracer()
    for payload in payloads[:middle]:
        first.post(payload)

    def post() -> None:
        with suppress(httpx.HTTPError):
            first.post(payloads[middle])

    posting = threading.Thread(target=post)
    posting.start()
    first.kill()
    posting.join()
    second = start_tracer(store=first.store)
    for payload in payloads[middle:]:
        second.post(payload)

    def found() -> set[tuple[str, str]]:
        return {(finding["rule"], finding["request"]) for finding in second.get("/api/findings", limit=1000)}

    until(
        lambda: found() >= known, why=lambda: found() ^ known
    )  # what was stored before the kill is judged beside what comes
    assert found() == known
