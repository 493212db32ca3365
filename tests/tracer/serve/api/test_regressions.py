"""What changed for the worse, in sentences: a table of situations, healthy and not, and what is said of each."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from counting import instructions

from kvtrail.tracer.model.markers import Marker, MarkerKind
from kvtrail.tracer.savings.minute_sums import SavingsRow
from kvtrail.tracer.serve.api import regressions
from kvtrail.tracer.serve.api.status import Level, Range, of_stores

S = 10**9
RANGE = Range(since_ns=0, until_ns=3600 * S)


def minute(
    number: int, *, asked: int, taken: int = 0, local: int = 0, engine: str = "a", connector: str = "Offload", **more: int
) -> SavingsRow:  # fmt: skip
    measures = {"asked": asked, "taken": taken, "local": local, "store_tokens": 1}
    measures |= {name.replace("__", ":").replace("_of_", "-"): value for name, value in more.items()}
    return SavingsRow(at_s=60 * number, engine=engine, connector=connector, epoch=0, measures=measures)


def marker(kind: MarkerKind, engine: str, at_s: int, text: str = "was started") -> Marker:
    return Marker(id=f"{kind} {engine}", kind=kind, at_ns=at_s * S, engine=engine, text=text)


FALLS = [minute(n, asked=10_000, taken=4_100 if n < 20 else 300) for n in range(40)]


THREE = [
    minute(n, asked=10_000, taken=taken, engine=engine) for n in range(20) for engine, taken in (("a", 5_000), ("b", 3_000))
]  # fmt: skip
"""Two engines that hit; each situation adds a third."""


class Situation(NamedTuple):
    name: str
    rows: list[SavingsRow]
    said: list[str]
    markers: tuple[Marker, ...] = ()
    models: tuple[tuple[str, str], ...] = ()


HEALTHY = [
    Situation("nothing", [], []),
    Situation("the same", [minute(n, asked=10_000, taken=4_000) for n in range(9)], []),
    Situation("up and down", [minute(n, asked=10_000, taken=4_000 if n % 2 else 0) for n in range(40)], []),
    Situation("too little", [minute(0, asked=9_000, taken=4_000), minute(1, asked=50_000)], []),
    Situation("8 points", [minute(0, asked=50_000, taken=4_000), minute(1, asked=50_000)], []),
    Situation(
        "vLLM's own cache has it",
        [minute(0, asked=50_000, taken=40_000), minute(1, asked=50_000, local=45_000)],
        [],
    ),
    Situation("for a moment", [minute(n, asked=10_000, taken=0 if n == 4 else 4_000) for n in range(9)], []),
    Situation(
        "an engine died, and nothing fell",
        [minute(n, asked=10_000, taken=4_000) for n in range(9)],
        [],
        (marker(MarkerKind.DEATH, "b", 240),),
    ),
    Situation(
        "the third engine hits as well",
        [*THREE, *(minute(n, asked=5_000, taken=900, engine="c") for n in range(20))],
        [],
    ),
    Situation("the third engine has not been asked for enough", [*THREE, minute(3, asked=9_000, engine="c")], []),
    Situation(
        "the third engine sees new prompts only",
        [*THREE, *(minute(n, asked=5_000, engine="c", cause__new__=4_900, cause__evicted__gpu=100) for n in range(20))],
        [],
    ),
    Situation(
        "the third engine has another model",
        [*THREE, *(minute(n, asked=5_000, engine="c") for n in range(20))],
        [],
        models=(("a", "llama"), ("b", "llama"), ("c", "qwen")),
    ),
    Situation(
        "one engine prefills for the others, and none stores",
        [
            minute(n, asked=5_000, taken=taken, engine=engine, store_tokens=0)
            for n in range(20)
            for engine, taken in (("prefill", 0), ("decode", 4_999))
        ],
        [],
    ),
    Situation("no hits", [minute(n, asked=10_000, engine=each) for n in range(20) for each in "abc"], []),
    Situation(
        "seven requests hit by chance",
        [minute(n, asked=1_700, taken=410 if n < 7 else 120, admissions=1) for n in range(60)],
        [],
    ),
    Situation(
        "the first engine of another model begins with an empty cache",
        [
            *(minute(n, asked=10_000, local=8_000) for n in range(40)),
            *(minute(n, asked=30_000, engine="c") for n in range(20, 40)),
        ],
        [],
        (marker(MarkerKind.DEPLOY, "c", 20 * 60, "was started, the first of its service and model"),),
        models=(("a", "llama"), ("c", "qwen")),
    ),
    Situation("19 points", [minute(n, asked=10_000, local=8_000 if n < 20 else 6_100) for n in range(40)], []),
    Situation(
        "more is asked for, at the same reuse",
        [minute(n, asked=10_000 if n < 20 else 30_000, local=2_000 if n < 20 else 6_000) for n in range(40)],
        [],
    ),
    Situation("a busy minute", [minute(n, asked=90_000 if n == 9 else 10_000, taken=500) for n in range(20)], []),
]
WRONG = [
    Situation(
        "many requests hit, and then few",
        [minute(n, asked=17_000, taken=4_100 if n < 7 else 1_200, admissions=10) for n in range(60)],
        ["Hit rate beyond vLLM's cache fell from 24 % to 7 % at 00:07"],
    ),
    Situation(
        "twenty requests hit mostly, and then none",
        [minute(n, asked=700, taken=420 if n < 20 else 0, admissions=1) for n in range(40)],
        ["Hit rate beyond vLLM's cache fell from 60 % to 0 % at 00:20"],
    ),
    Situation(
        "vLLM's own hits fell from half to none",
        [minute(n, asked=10_000, local=5_000 if n < 20 else 0) for n in range(40)],
        ["Prefill rose from 50 % to 100 % of the tokens asked for at 00:20"],
    ),
    Situation("the hit rate fell", FALLS, ["Hit rate beyond vLLM's cache fell from 41 % to 3 % at 00:20"]),
    Situation(
        "as an engine died",
        FALLS,
        ["Hit rate beyond vLLM's cache fell from 41 % to 3 % at 00:20, as engine B died (00:19:10)"],
        (
            marker(MarkerKind.DEPLOY, "c", 20 * 60),
            marker(MarkerKind.END, "d", 20 * 60),
            marker(MarkerKind.DEATH, "b", 19 * 60 + 10),
        ),
    ),
    Situation(
        "as contact was lost",
        FALLS,
        ["Hit rate beyond vLLM's cache fell from 41 % to 3 % at 00:20, as engine B lost contact (00:20:30)"],
        (marker(MarkerKind.CONTACT_LOST, "b", 20 * 60 + 30),),
    ),
    Situation(
        "as an engine was started",
        FALLS,
        ["Hit rate beyond vLLM's cache fell from 41 % to 3 % at 00:20, as engine A was started (00:20:05)"],
        (marker(MarkerKind.DEPLOY, "a", 20 * 60 + 5),),
    ),
    Situation(
        "as an engine ended and another version took its place",
        FALLS,
        [
            "Hit rate beyond vLLM's cache fell from 41 % to 3 % at 00:20, as engine B was started with vLLM 0.11 → 0.12"
            " (00:19:30)"
        ],
        (
            marker(MarkerKind.END, "a", 19 * 60 + 10),
            marker(MarkerKind.DEPLOY, "b", 19 * 60 + 30, "was started with vLLM 0.11 → 0.12"),
        ),
    ),
    Situation(
        "dropped events explain nothing",
        FALLS,
        ["Hit rate beyond vLLM's cache fell from 41 % to 3 % at 00:20"],
        (marker(MarkerKind.DROP, "a", 20 * 60),),
    ),
    Situation(
        "as a cache was reset",
        FALLS,
        ["Hit rate beyond vLLM's cache fell from 41 % to 3 % at 00:20, as engine A reset it (00:20:00)"],
        (marker(MarkerKind.RESET, "a", 20 * 60, "reset it"),),
    ),
    Situation(
        "a death long before is not named",
        FALLS,
        ["Hit rate beyond vLLM's cache fell from 41 % to 3 % at 00:20"],
        (marker(MarkerKind.DEATH, "b", 600),),
    ),
    Situation(
        "of one engine, and over all",
        [
            minute(n, asked=10_000, taken=8_000 if engine == "a" and n < 20 else 1_000, engine=engine)
            for n in range(40)
            for engine in "ab"
        ],
        ["Hit rate beyond vLLM's cache fell from 45 % to 10 % at 00:20"],
    ),
    Situation(
        "of one engine, hidden among the others",
        [
            minute(n, asked=10_000, taken=6_000 if engine != "c" or n < 20 else 1_000, engine=engine)
            for n in range(40)
            for engine in "abc"
        ],
        ["Hit rate of engine C beyond vLLM's cache fell from 60 % to 10 % at 00:20"],
    ),
    Situation(
        "a deploy that tripled prefill, and not the connector's hit rate",
        [minute(n, asked=10_000, local=8_000 if n < 20 else 4_000, taken=0) for n in range(40)],
        ["Prefill rose from 20 % to 60 % of the tokens asked for at 00:20, as engine A was started (00:20:05)"],
        (marker(MarkerKind.DEPLOY, "a", 20 * 60 + 5),),
    ),
    Situation(
        "prefill of one engine, hidden among the others",
        [
            minute(n, asked=10_000, local=8_000 if engine != "c" or n < 20 else 2_000, engine=engine)
            for n in range(40)
            for engine in "abcd"
        ],
        ["Prefill of engine C rose from 20 % to 80 % of the tokens asked for at 00:20"],
    ),
    Situation(
        "one of three engines hits nothing",
        [
            *THREE,
            *(minute(n, asked=5_000, engine="c", cause__new__=2_000, cause__evicted__gpu=3_000) for n in range(20)),
        ],
        ["Engine C has a hit rate of 0 % in 100,000 tokens beyond vLLM's cache, and 2 other engines with Offload 40 %"],
    ),
    Situation(
        "one of three engines hits next to nothing",
        [*THREE, *(minute(n, asked=5_000, taken=50, engine="c") for n in range(20))],
        ["Engine C has a hit rate of 1 % in 100,000 tokens beyond vLLM's cache, and 2 other engines with Offload 40 %"],
    ),
]


def said(situation: Situation) -> list[str]:
    found = regressions.of_sums(
        situation.rows, RANGE, situation.markers, str.upper, models=dict(situation.models), step_s=60
    )
    found += regressions.without_hits(situation.rows, str.upper, dict(situation.models))
    assert {each.level for each in found} <= {Level.WARNING}, situation.name
    return [each.text for each in found]


@pytest.mark.parametrize("situation", [*HEALTHY, *WRONG], ids=lambda each: each.name)
def test_what_is_said_of_a_situation(situation: Situation) -> None:
    assert said(situation) == situation.said


def test_a_change_has_its_moment_and_leads_to_the_page_about_it() -> None:
    (statement,) = regressions.of_sums(FALLS, RANGE, (), str, models={}, step_s=60)
    assert (statement.kind, statement.at_ns, statement.page) == ("hit-rate", 20 * 60 * S, "overview")
    assert statement.query == {"at": "1970-01-01T00:20:00Z"}


@pytest.mark.parametrize("models", [1, 1000], ids=["one model", "a model each"])
def test_an_engine_costs_the_same_in_a_large_fleet(models: int) -> None:
    def asked(engines: int) -> int:
        rows = [minute(0, asked=20_000, taken=5_000, engine=f"e{number}") for number in range(engines)]
        of = {f"e{number}": str(number % models) for number in range(engines)}
        return instructions(lambda: regressions.without_hits(rows, str, of))

    assert asked(400) < 5 * asked(100)


def test_the_page_and_the_alert_say_alike_that_prefill_rose() -> None:
    """The page wanted twice as much, and was blind where half or more had been computed before."""
    rules = yaml.safe_load((Path(__file__).parents[4] / "deploy/prometheus/kvtrail.rules.yml").read_text())
    (alert,) = (r for group in rules["groups"] for r in group["rules"] if r.get("alert") == "KvtrailPrefillJump")
    expression = " ".join(alert["expr"].split())
    assert f"> {regressions.RISE} * engine_connector:kvtrail_computed_tokens:ratio_rate6h" in expression
    assert f"- engine_connector:kvtrail_computed_tokens:ratio_rate6h > {regressions.ROSE_BY} " in expression
    assert f"more than {regressions.RISE} times its mean" in alert["annotations"]["description"]


def test_a_store_that_gives_nothing_where_another_size_would_give_much_is_not_well() -> None:
    """ "All well" for a store that gave 0 % where 140 chunks would have given 69 %."""
    curve = {"memory:wanted": 100_000, "memory::56": 69_000, "memory::": 31_000, "memory:chunks": 400}
    curve["memory:chunk_tokens"] = 400 * 256

    def said(taken: int, share: float = 1.0) -> list[str]:
        measures = {name: round(value * share) for name, value in curve.items()} | {"asked": 100_000, "taken": taken}
        row = SavingsRow(at_s=0, engine="a", connector="Offload", epoch=0, measures=measures)
        return [each.text for each in of_stores([row], str.upper)]

    assert said(0) == [
        "The store of Offload in engine A gave 0 % of what vLLM's cache did not hold, where one of 128 chunks would have"
        " given 69 %"
    ]
    assert said(60_000) == [], "it gives nearly as much"
    assert said(0, share=0.05) == [], "hardly anything was asked for"
