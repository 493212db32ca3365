"""What is said of fixed inputs is what is pinned; CONTRIBUTING.md says what to do where it is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("chdb", reason="the pins of ClickHouse need chDB")

from pins import PINS, answers, compare, plain, read, written
from pins.day import Day, stored
from pins.pins import ALONE, AREAS, OF_THE_DAY

MAX_BYTES, MAX_BYTES_OF_ALL = 500_000, 1_500_000


@pytest.fixture(scope="module")
def day() -> Iterator[Day]:
    with stored() as day:
        yield day


@pytest.mark.parametrize("area", ALONE)
def test_what_is_said_without_a_store_is_as_pinned(area: str) -> None:
    compare(area, ALONE[area]())


@pytest.mark.parametrize("area", [area for area in OF_THE_DAY if area != "api_clickhouse"])
def test_what_is_said_of_the_day_is_as_pinned(day: Day, area: str) -> None:
    compare(area, OF_THE_DAY[area](day))


@pytest.mark.costly("ClickHouse answers a question in a tenth of a second")
def test_what_clickhouse_answers_about_the_day_is_as_pinned(day: Day) -> None:
    pinned = answers.resolved(read("api_clickhouse"), read("api_sqlite"))
    compare("api_clickhouse", answers.api_clickhouse(day), pinned=pinned)


def test_every_route_that_reads_is_asked(day: Day) -> None:
    assert answers.routes_not_asked(day.local) == set()


def test_the_pins_are_text_that_is_small_and_sorted() -> None:
    paths = list(PINS.iterdir())
    assert {path.stem for path in paths} == set(AREAS)
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert len(text.encode()) <= MAX_BYTES, path.name
        assert text == f"{written(plain(read(path.stem)))}\n", f"{path.name} is not as `make pins` writes it"
    assert sum(path.stat().st_size for path in paths) <= MAX_BYTES_OF_ALL


def test_a_difference_is_named_with_its_place_and_both_values() -> None:
    with pytest.raises(AssertionError, match=r"make pins[\s\S]*a / b\[1\]: 3 instead of 2\na / c: is new: \"d\""):
        compare("none", {"a": {"b": [1, 3], "c": "d"}}, pinned={"a": {"b": [1, 2]}})
