"""How long requests took, as the api answers it, from a real tracer process; and requests filtered by it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from history import START_NS, hash_of
from processes import SLOW_S, Tracer
from test_api_ranges import feed

QUICK = "start 749 as lora-a\nL 749 c0 h256 -> 256\nA 256 [1-47]\nS 256+493\nS 749+1 [48]\nwait 2\nend"
SLOW = "start 749\nL 749 c0 h512 -> 512 async\nA 512 [1-47]\nwait 1\nR\nS 512+237 []\nwait 2\nS 749+1 [48]\nwait 9\nend"
RANGE = {"since_ns": START_NS - 10**9, "before_ns": START_NS + 600 * 10**9}
EVER = {"since_ns": START_NS - 10**9, "until_ns": START_NS + 600 * 10**9}


@pytest.fixture(scope="module")
def fed(api: Tracer) -> Tracer:
    for number in range(4):
        feed(api, QUICK, request=f"quick-{number}-0123abcd", recorder=f"lat-a-{number}", engine="lat-a", connector="C")
    feed(api, SLOW, request="slow-0123abcd", recorder="lat-b", engine="lat-b", connector="C")
    for number, (blocks, end) in enumerate(
        [("x y z", "end"), ("x y w", "end aborted"), ("x v z", "L 96 c0 -> !OSError")]
    ):
        reported = f"start 96 of {blocks}\nL 96 c0 h64 -> 64\nA 64 [1-3]\nS 64+32\n{end}"
        feed(
            api,
            reported,
            request=f"reported-{number}-0123abcd",
            recorder=f"lat-c-{number}",
            engine="lat-c",
            connector="C",
        )
    return api


def of_ours(api: Tracer, route: str, **asked: Any) -> Any:
    return api.get(route, **{"where": "prompt = 749 and duration > 1s", **EVER, **asked})


def test_percentiles_and_heat_map_are_of_the_requests(fed: Tracer) -> None:
    result = of_ours(fed, "/api/latency", engine="lat-a")
    (row, *_) = fed.get("/api/requests", search="quick-0")
    assert (result["requests"], result["whole"]["requests"]) == (4, 4)
    exact = row["times"]["duration"]
    for name in ("p50_ns", "p90_ns", "p99_ns"):
        assert result["whole"][name] == pytest.approx(exact, rel=0.09)
    cells = [dict(zip(result["cells"], cell, strict=True)) for cell in zip(*result["cells"].values(), strict=True)]
    assert sum(cell["requests"] for cell in cells) == 4
    assert all(cell["low_ns"] <= exact < cell["high_ns"] for cell in cells)
    assert [stretch["at_ns"] for stretch in result["trend"]] == sorted({cell["at_ns"] for cell in cells})
    for cell in cells:  # what a cell counts is what its range and its bin select
        chosen = f"duration >= {cell['low_ns']}ns and duration < {cell['high_ns']}ns"
        found = fed.get(
            "/api/requests", engine="lat-a", where=chosen, since_ns=cell["at_ns"],
            before_ns=cell["at_ns"] + result["step_ns"],
        )  # fmt: skip
        assert len(found) == cell["requests"]


def test_a_request_that_waited_for_its_load_has_that_in_its_phases(fed: Tracer) -> None:
    result = of_ours(fed, "/api/latency/measures", engine="lat-b")
    by_name = {each["of"]: each for each in result["times"]}
    (row,) = fed.get("/api/requests", search="slow-0123abcd")
    assert result["tokens"] == row["tokens"]
    assert sum(row["tokens"].values()) == 749
    for name in ("duration", "first_token", "load_wait", "prefill", "decode"):
        assert by_name[name]["requests"] == 1, name
        assert by_name[name]["p50_ns"] == pytest.approx(row["times"][name], rel=0.05)
    assert by_name["load_wait"]["p50_ns"] > 0.8e9
    assert by_name["preempted"] == {
        "of": "preempted", "requests": 0, "p50_ns": None, "p90_ns": None, "p99_ns": None,
    }  # fmt: skip


def test_groups_add_up_and_each_selects_its_requests(fed: Tracer) -> None:
    tenants = of_ours(fed, "/api/latency/groups", by="tenant", of="first_token")
    by_name = {group["name"]: group for group in tenants["groups"]}
    assert by_name["lora-a"]["all_requests"] == 4
    assert by_name["lora-a"]["loaded"] / by_name["lora-a"]["asked"] == pytest.approx(256 / 749)
    found = of_ours(fed, "/api/requests", where="tenant = lora-a")
    assert len(found) == 4
    for by in ("engine", "model", "connector", "tenant", "prefix"):
        groups = of_ours(fed, "/api/latency/groups", by=by)
        assert sum(group["all_requests"] for group in groups["groups"]) == groups["requests"], by
    engines = {group["name"]: group for group in of_ours(fed, "/api/latency/groups", by="engine")["groups"]}
    assert engines["lat-b"]["p50_ns"] > 3 * engines["lat-a"]["p50_ns"]


def test_prompts_that_begin_alike_are_one_group_and_lead_to_their_requests(fed: Tracer) -> None:
    """Blocks of 32 tokens: the second one ends the first 64."""
    groups = fed.get("/api/latency/groups", by="prefix", engine="lat-c", **EVER)
    assert [(group["name"], group["all_requests"], group["asked"], group["loaded"]) for group in groups["groups"]] == [
        (hash_of("y").hex(), 2, 192, 128), (hash_of("v").hex(), 1, 96, 64),
    ]  # fmt: skip
    found = fed.get("/api/requests", where=f"prefix = {hash_of('y').hex()}", **RANGE)
    assert sorted(row["request"] for row in found) == ["reported-0-0123abcd", "reported-1-0123abcd"]
    assert {row["prefix"] for row in found} == {hash_of("y").hex()}
    assert of_ours(fed, "/api/latency/groups", by="prefix")["groups"][0]["name"] == "unknown", "no hash is recorded"


@pytest.mark.parametrize("outcome", ["finished", "aborted", "failed", "lost"])
def test_all_routes_about_requests_filter_by_outcome(fed: Tracer, outcome: str) -> None:
    which = {"engine": "lat-c", "outcome": outcome, "tenant": "unknown", "where": "prompt = 96"}
    names = {row["request"] for row in fed.get("/api/requests", **which, **RANGE)}
    number = {"finished": 0, "aborted": 1, "failed": 2}.get(outcome)
    assert names == (set() if number is None else {f"reported-{number}-0123abcd"})
    for route in ("/api/latency", "/api/latency/measures", "/api/latency/groups"):
        by = {"by": "prefix"} if route.endswith("groups") else {}
        assert fed.get(route, **which, **by, **EVER)["requests"] == len(names), route
    drawn = fed.get("/api/lanes", from_ns=EVER["since_ns"], to_ns=EVER["until_ns"], **which)
    assert {*drawn["requests"]["request"]} == names


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("duration > 2", "'duration' is a time, which needs a unit (ns, us, µs, ms, s, min, h): '2'"),
        ("speed > 2s", "'speed' cannot be filtered by; these can: duration, first_token"),
        ("computed > 2s", "'computed' is a count, which has no unit: '2s'"),
        ("duration", "'duration' is no condition; write one like 'duration > 2s' or 'evicted >= 100'"),
        ("computed > -1", "'-1' is no number to compare 'computed' with"),
        ("tenant > a", "'tenant' is a text, which can only be compared with ="),
    ],
)
def test_a_condition_that_is_none_is_answered_with_the_reason(fed: Tracer, where: str, why: str) -> None:
    for route in ("requests", "latency", "latency/measures", "latency/groups?by=engine"):
        path, _, rest = route.partition("?")
        asked = {"where": where, **({"by": rest.removeprefix("by=")} if rest else {})}
        answer = httpx.get(f"{fed.url}/api/{path}", params=asked, timeout=SLOW_S)
        assert answer.status_code == 400
        assert answer.json()["detail"].startswith(f"where: {why}"), route
