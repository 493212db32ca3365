"""Causes of prompt tokens, as a tracer process serves them."""

from __future__ import annotations

import httpx
import pytest
from evicted_story import ABOUT, CHUNK, STORY
from history import START_NS, history
from processes import SLOW_S, Tracer, until
from wire import encoded

WINDOW = {"since_ns": START_NS - 10**9, "until_ns": START_NS + 60 * 10**9}


def feed(tracer: Tracer, engine: str, *, story: str = STORY, lost: str = "") -> None:
    events = history(story, chunk=CHUNK, engine=engine, recorder=engine)
    payload = encoded([event for event in events if event.kind != lost], ABOUT)
    headers = {"content-type": "application/x-protobuf"}
    assert httpx.post(f"{tracer.url}/v1/traces", content=payload, headers=headers, timeout=SLOW_S).status_code == 200


def test_a_request_has_its_parts_and_ranges_of_time_their_sums(api: Tracer) -> None:
    feed(api, "why-engine")
    found = api.get("/api/requests/b-cmpl-1-0-0123abcd", engine="why-engine")
    (entry,) = found["request"]["causes"]
    assert [(part["cause"], part["tier"], part["tokens"]) for part in entry["parts"]] == [
        ("held", "gpu", 64),
        ("evicted", "store", 32),
        ("unaligned", "", 24),
    ]
    assert (entry["epoch"], entry["total"], entry["final"]) == (0, 120, True)
    worth = api.get("/api/efficiency", engine="why-engine", **WINDOW)["worth"]
    assert worth["causes"] == {"evicted:store": 32, "held:gpu": 64, "new:": 96, "unaligned:": 24}
    assert worth["causes_age_s"]["evicted"] == pytest.approx(0.003)
    metrics = httpx.get(f"{api.url}/metrics", timeout=SLOW_S).text
    counted = [line for line in metrics.splitlines() if "kvtrail_prompt_tokens_total{" in line and "why-engine" in line]
    assert {line.partition('cause="')[2].partition('"')[0]: float(line.rpartition(" ")[2]) for line in counted} == {
        "held": 64, "evicted": 32, "unaligned": 24, "new": 96,
    }  # fmt: skip


def test_after_a_loss_causes_are_unknown_and_say_so(api: Tracer) -> None:
    feed(api, "lossy-engine", lost="kv.evict")

    def causes() -> dict[str, int]:
        worth = api.get("/api/efficiency", engine="lossy-engine", **WINDOW)["worth"]
        return worth["causes"]  # type: ignore[no-any-return]

    until(lambda: "unknown:lost" in causes())
    assert causes()["unknown:lost"] == 32


def test_causes_are_split_by_tenant_where_requests_have_a_salt(api: Tracer) -> None:
    salted = STORY.replace("b: start 120 of", "b: start 120 as 5a17 of")
    assert salted != STORY
    feed(api, "salted-engine", story=salted)
    by_tenant = api.get("/api/efficiency", engine="salted-engine", **WINDOW)["by_tenant"]
    assert by_tenant == {"5a17": {"evicted": 32, "held": 64, "unaligned": 24}, "plain": {"new": 96}}
    assert api.get("/api/efficiency", engine="why-engine", **WINDOW)["by_tenant"] == {}
