"""What was computed although a cache had held it, as a tracer process answers it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from evicted_story import ABOUT, CHUNK, STORY
from history import START_NS, hash_of, history
from processes import Tracer, serve
from wire import encoded

WINDOW = {"since_ns": START_NS - 10**9, "until_ns": START_NS + 60 * 10**9}
RED = "5a17c0ffee5a17c0"


@pytest.fixture(scope="module")
def tracer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracer]:
    folder = tmp_path_factory.mktemp("waste")
    (folder / "tenants.yaml").write_text(f"{RED}: Acme\n")
    tracer = serve(folder, "--tenants", str(folder / "tenants.yaml"))
    for engine, model, tenant in (("a", "m", ""), ("b", "m", RED), ("c", "n", RED)):
        story = STORY.replace("b: start 120 of", f"b: start 120 as {tenant} of") if tenant else STORY
        events = history(story, chunk=CHUNK, engine=engine, recorder=engine)
        tracer.post(encoded(events, {**ABOUT, "kvtrail.model": model}))
    yield tracer
    tracer.kill()


def asked(tracer: Tracer, **filters: str) -> Any:
    return tracer.get("/api/waste", **WINDOW, **filters)


def test_waste_by_tenant_and_prefix(tracer: Tracer) -> None:
    answer = asked(tracer)
    assert answer["whole"]["tokens"] == 96
    assert answer["whole"]["admissions"] == 3
    assert (answer["whole"]["seconds"], answer["whole"]["unrated"]) == (None, 96), "no step says how fast they prefill"
    assert {(each["tenant"], each["tenant_name"], each["tokens"]) for each in answer["by_tenant"]} == {
        (RED, "Acme", 64), ("plain", None, 32),
    }  # fmt: skip
    (prefix,) = answer["by_prefix"]
    assert (prefix["tokens"], prefix["start"], prefix["admissions"]) == (96, 64, 3)
    assert {(each["engine"], each["request"], each["tokens"]) for each in answer["requests"]} == {
        (engine, "b-cmpl-1-0-0123abcd", 32) for engine in "abc"
    }
    assert answer["covered_from_ns"] == answer["since_ns"]


def test_tenants_have_their_names_where_requests_are_grouped(tracer: Tracer) -> None:
    answer = tracer.get("/api/latency/groups", by="tenant", **WINDOW)
    assert {(each["name"], each["text"]) for each in answer["groups"]} >= {(RED, "Acme")}


def test_waste_of_an_engine_is_compared_with_what_that_engine_computed(tracer: Tracer) -> None:
    answers = [asked(tracer, engine=engine) for engine in "abc"]
    assert [each["whole"]["tokens"] for each in answers] == [32, 32, 32]
    assert [each["computed"] for each in answers] == [asked(tracer)["computed"] // 3] * 3
    assert {each["engine"] for answer in answers[:1] for each in answer["requests"]} == {"a"}


def test_waste_is_that_of_the_causes_in_the_same_range(tracer: Tracer) -> None:
    answer, efficiency = asked(tracer), tracer.get("/api/efficiency", **WINDOW)
    causes = efficiency["worth"]["causes"]
    assert answer["whole"]["tokens"] == causes["evicted:store"]
    assert answer["computed"] == sum(tokens for name, tokens in causes.items() if not name.startswith("held"))
    assert efficiency["tenant_names"] == {RED: "Acme"}


def test_requests_are_grouped_by_tenants_with_names_and_by_the_beginning_that_all_have(tracer: Tracer) -> None:
    groups = tracer.get("/api/latency/groups", by="tenant", **WINDOW)["groups"]
    assert {(group["name"], group["text"]) for group in groups} == {(RED, "Acme"), ("unknown", "unknown")}
    (begun,) = tracer.get("/api/latency/groups", by="prefix", **WINDOW)["groups"]
    assert (begun["name"], begun["all_requests"]) == (hash_of("y").hex(), 6)


@pytest.mark.parametrize(
    ("filters", "engines"),
    [
        ({"tenant": RED}, "bc"),
        ({"engine": "a"}, "a"),
        ({"model": "n"}, "c"),
        ({"prefix": "00"}, ""),
    ],
)
def test_filters_narrow_it_down_to_requests(tracer: Tracer, filters: dict[str, str], engines: str) -> None:
    answer = asked(tracer, **filters)
    assert {each["engine"] for each in answer["requests"]} == set(engines)
    assert answer["whole"]["tokens"] == 32 * len(engines)


def test_the_requests_of_a_prefix(tracer: Tracer) -> None:
    (prefix,) = asked(tracer)["by_prefix"]
    assert len(asked(tracer, prefix=prefix["prefix"], tenant=RED)["requests"]) == 2
