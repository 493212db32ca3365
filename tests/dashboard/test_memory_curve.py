"""What more memory would buy, as the page tells it."""

from __future__ import annotations

from typing import Any

from kvtrail.dashboard.content import memory, trends

MIB = 1 << 20
CURVE: dict[str, Any] = {
    "engine": "e",
    "connector": "OffloadConnector",
    "wanted": 3_600_000,
    "chunk_size": 256,
    "chunk_bytes": 8 * MIB,
    "points": [
        {"chunks": 128, "share": 0.1, "error": 0.0},
        {"chunks": 256, "share": 0.2, "error": 0.01},
        {"chunks": 512, "share": 0.4, "error": 0.01},
        {"chunks": 1024, "share": 0.5, "error": 0.01},
    ],
}
GIB = 1 << 30


def test_more_memory_is_worth_prefill() -> None:
    said = memory.sentences(CURVE, limit=2 * GIB, rate=10_000.0, hours=2.0)
    assert said == (
        "Today's 2 GiB give 20 % of what vLLM's own cache does not hold. 2 GiB more would have saved 36.00 s of prefill an"
        " hour, 6 GiB 54.00 s. Beyond 8 GiB nothing is gained: what is asked for is new then."
    )


def test_without_a_rate_it_is_worth_tokens() -> None:
    said = memory.sentences(CURVE, limit=2 * GIB, rate=None, hours=2.0)
    assert "2 GiB more would have given 360,000 tokens an hour, 6 GiB 540,000 tokens." in said


def test_enough_is_enough() -> None:
    assert memory.sentences(CURVE, limit=16 * GIB, rate=None, hours=1.0).startswith("Today's 16 GiB are enough")


def test_where_todays_store_is_not_known_it_says_so() -> None:
    said = memory.sentences({**CURVE, "chunk_bytes": None}, limit=2 * GIB, rate=None, hours=1.0)
    assert said.startswith(
        "At most 50 % of what vLLM's own cache did not hold could have been given. Beyond 1,024 chunks"
    )
    assert said.endswith("How much the store holds today is not known.")


def test_nothing_asked_for_twice() -> None:
    said = memory.sentences({**CURVE, "points": []}, limit=None, rate=None, hours=1.0)
    assert said == "No prefix was asked for twice, so no memory would have given anything."


def test_the_limit_is_that_of_the_engine() -> None:
    engines: list[dict[str, Any]] = [
        {"engine": "other", "recorders": [{"memory_limit": 1}]},
        {"engine": "e", "recorders": [{"memory_limit": None}, {"memory_limit": GIB}]},
    ]
    assert memory.limit_of(CURVE, engines) == GIB
    assert memory.limit_of(CURVE, engines[:1]) is None


def test_the_chart_shows_the_curve_its_error_and_today() -> None:
    spec = trends.what_memory_buys(CURVE, limit=2 * GIB, dark=False).to_dict()
    data = {layer["data"]["name"]: layer["data"]["values"] for layer in spec["layer"]}
    assert [(row["store"], row["share"]) for row in data["capacities"]] == [(1, 0.1), (2, 0.2), (4, 0.4), (8, 0.5)]
    assert data["capacities"][1]["given"] == "20.0 % ± 2.0"
    assert data["today"] == [{"store": 2.0, "name": "today"}]
    small = trends.what_memory_buys({**CURVE, "chunk_bytes": 8 << 10}, limit=2 * MIB, dark=False).to_dict()
    assert small["layer"][1]["encoding"]["x"]["title"] == "store (MiB on each worker)"
    assert {layer["data"]["name"]: layer["data"]["values"][0]["store"] for layer in small["layer"]}["today"] == 2.0
    unknown = trends.what_memory_buys(CURVE, limit=None, dark=False).to_dict()
    assert len(unknown["layer"]) == len(spec["layer"]) - 2
