"""What more memory would buy, as the page shows it."""

from __future__ import annotations

from typing import Any

import pytest

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import charts, memory
from kvtrail.tracer.model import store_size

MIB = 1 << 20
CURVE: dict[str, Any] = {
    "engine": "e",
    "connector": "OffloadConnector",
    "wanted": 3_600_000,
    "chunk_size": 256,
    "chunk_bytes": 8 * MIB,
    "since_s": None,
    "points": [
        {"chunks": 128, "share": 0.1, "error": 0.0},
        {"chunks": 256, "share": 0.2, "error": 0.01},
        {"chunks": 512, "share": 0.4, "error": 0.01},
        {"chunks": 1024, "share": 0.5, "error": 0.01},
    ],
}
GIB = 1 << 30


def shown(curve: Row = CURVE, *, limit: int | None = None, given: float | None = None) -> Row:
    """The curve of a store with this limit in bytes, which gave this share."""
    engines = [{"engine": "e", "recorders": [{"memory_limit": limit}]}]
    savings = {"memory": [curve], "engine_names": {}, "by_place": []}
    return {**memory.of_store(curve, savings, engines), "given": given}


def test_what_todays_store_gives_and_where_nothing_is_gained() -> None:
    said = memory.sentences(shown(CURVE, limit=2 * GIB))
    assert said == (
        "Today's 2 GiB give 20 % of what vLLM's own cache does not hold. Beyond 8 GiB"
        " nothing is gained: what is asked for is new then."
    )


def test_enough_is_enough() -> None:
    said = memory.sentences(shown(CURVE, limit=16 * GIB, given=0.45))
    assert said == (
        "Today's 16 GiB have room for all that is asked for again, 50 % of what vLLM's own cache does not hold. As"
        " measured, it gave 45 %. Beyond 8 GiB nothing is gained: what is asked for is new then."
    )


def test_of_several_stores_the_one_that_is_meant_is_named() -> None:
    """ "A store of 7 chunks would have given 42 %", beside eight engines."""
    savings = {"memory": [CURVE], "engine_names": {"e": "llama_a"}, "by_place": []}
    assert memory.of_store(CURVE, savings, [])["place"] == ""
    several = {**savings, "memory": [CURVE, {**CURVE, "engine": "f"}]}
    assert memory.of_store(CURVE, several, [])["place"] == r"OffloadConnector in llama\_a"


@pytest.mark.parametrize(
    ("limit", "given", "says"),
    [
        (
            2 * GIB,
            0.0,
            "A store of 8 GiB would have given 50 % of what vLLM's own cache did not hold, by the estimate below;",
        ),
        (None, 0.0, "A store of 8 GiB would have given 50 %"),
        (2 * GIB, 0.45, ""),
        (2 * GIB, None, ""),
        (16 * GIB, 0.0, ""),
    ],
    ids=["too small", "of unknown size", "gives most", "not measured", "large enough"],
)
def test_a_size_that_would_have_given_much_more_is_named(limit: int | None, given: float | None, says: str) -> None:
    said = memory.better(shown(CURVE, limit=limit, given=given))
    assert said.startswith(says)
    assert bool(said) == bool(says)


def test_the_curve_is_that_of_the_connector_with_most_to_gain() -> None:
    """Not that of an engine that needs nothing, only because it is asked for more."""
    sums = {"asked": 1_000, "local": 0, "causes": {}}
    needs_nothing = {**CURVE, "engine": "busy", "wanted": 9_000_000}
    savings = {
        "memory": [needs_nothing, CURVE],
        "engine_names": {},
        "by_place": [
            {"engine": "busy", "connector": "OffloadConnector", "worth": {**sums, "taken": 500}},
            {"engine": "e", "connector": "OffloadConnector", "worth": {**sums, "taken": 0}},
        ],
    }
    most = memory.most_to_gain(savings, [])
    assert most is not None
    assert most["engine"] == "e"
    assert memory.of_store(needs_nothing, savings, [])["given"] == 0.5
    assert memory.most_to_gain({**savings, "memory": []}, []) is None


def test_where_todays_store_is_not_known_it_says_so() -> None:
    said = memory.sentences(shown({**CURVE, "chunk_bytes": None}, limit=2 * GIB))
    assert said.startswith(
        "At most 50 % of what vLLM's own cache did not hold could have been given. Beyond 1,024 chunks"
    )
    said = memory.sentences(shown(CURVE, limit=None, given=0.18))
    assert said.endswith("How much the store may hold is not known. As measured, it gave 18 %.")


def test_what_the_store_gave_is_measured_beside_the_estimate() -> None:
    sums = {"asked": 1_000, "local": 400, "taken": 100, "causes": {"unaligned:": 90, "last-token:gpu": 10, "new:": 400}}
    assert store_size.given(sums) == 0.2
    assert store_size.given({**sums, "asked": 500}) is None
    said = memory.sentences(shown(CURVE, limit=2 * GIB, given=0.2))
    assert said.startswith(
        "Today's 2 GiB give 20 % of what vLLM's own cache does not hold. As measured, it gave 20 %. "
    )


def test_nothing_asked_for_twice() -> None:
    said = memory.sentences(shown({**CURVE, "points": []}, limit=None))
    assert said == "No prefix was asked for twice, so no memory would have given anything."


def test_the_limit_is_that_of_the_engine() -> None:
    engines: list[dict[str, Any]] = [
        {"engine": "other", "recorders": [{"memory_limit": 1}]},
        {"engine": "e", "recorders": [{"memory_limit": None}, {"memory_limit": GIB}]},
    ]
    savings = {"memory": [CURVE], "engine_names": {}, "by_place": []}
    assert memory.of_store(CURVE, savings, engines)["held"] == 128
    assert memory.of_store(CURVE, savings, engines[:1])["held"] is None


def test_the_chart_shows_the_curve_its_error_and_today() -> None:
    spec = charts.what_memory_buys(shown(CURVE, limit=2 * GIB, given=0.2), dark=False).to_dict()
    data = {layer["data"]["name"]: layer["data"]["values"] for layer in spec["layer"]}
    assert [(row["store"], row["share"]) for row in data["capacities"]] == [(1, 0.1), (2, 0.2), (4, 0.4), (8, 0.5)]
    assert data["capacities"][1]["given"] == "20.0 % ± 2.0"
    assert data["today"] == [{"store": 2.0, "name": "you are here", "share": 0.2, "given": "20.0 %"}]
    small = charts.what_memory_buys(
        shown({**CURVE, "chunk_bytes": 8 << 10}, limit=2 * MIB, given=None), dark=False
    ).to_dict()
    assert small["layer"][1]["encoding"]["x"]["title"] == "store (MiB on each worker)"
    assert {layer["data"]["name"]: layer["data"]["values"][0]["store"] for layer in small["layer"]}["today"] == 2.0
    unknown = charts.what_memory_buys(shown(CURVE, limit=None, given=None), dark=False).to_dict()
    assert len(unknown["layer"]) == len(spec["layer"]) - 3


def test_it_says_since_when_it_counts() -> None:
    assert memory.counted_since(CURVE) == ""
    said = memory.counted_since({**CURVE, "since_s": 1_763_900_400})
    assert "from about 12:20 on" in said, "to ten minutes, and so it may be before the sidecar's start"
    assert "taken for new" in said
