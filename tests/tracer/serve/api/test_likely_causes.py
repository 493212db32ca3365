"""What probably caused a change: a table of situations, and what is named first in each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pytest

from kvtrail.tracer.liveness.markers import BEFORE_NS
from kvtrail.tracer.model.markers import Marker, MarkerKind
from kvtrail.tracer.savings.changes import Side, changes
from kvtrail.tracer.savings.minute_sums import SavingsRow
from kvtrail.tracer.serve.api.changes import MOST, likely_causes

S = 10**9
AT_NS = 20 * 60 * S


def row(engine: str, **measures: int) -> SavingsRow:
    named = {name.replace("__", ":"): value for name, value in measures.items()}
    return SavingsRow(at_s=0, engine=engine, connector="C", epoch=0, measures=named)


def marker(kind: MarkerKind, engine: str, *, later_s: int = 0, text: str = "was started") -> Marker:
    return Marker(id=f"{kind} {engine}", kind=kind, at_ns=AT_NS + later_s * S, engine=engine, text=text)


TENANTS = {"0123456789ab": "Acme"}
BOTH = [row("a", asked=1000, taken=800), row("b", asked=1000, taken=800)]
B_LOST = [row("a", asked=1000, taken=800), row("b", asked=1000)]
MORE = [row("a", asked=3000, taken=2400), row("b", asked=3000, taken=2400)]
EVICTING = [row("a", asked=1000, taken=0, cause__new__=200, cause__evicted__gpu=800)]
HELD = [row("a", asked=1000, taken=800, cause__loaded__host=800, cause__new__=200)]
RESET = [row("a", asked=1000, taken=0, cause__new__=200, cause__reset__host=800)]
TENANT = [*HELD, row("a", asked=2000, cause__new__=2000, tenant__0123456789ab__new=2000)]


class Situation(NamedTuple):
    name: str
    before: list[SavingsRow]
    after: list[SavingsRow]
    markers: list[Marker]
    said: list[str]
    prefixes: Mapping[str, dict[str, int]] = MappingProxyType({})


SITUATIONS = [
    Situation("nothing is known", BOTH, B_LOST, [], []),
    Situation("nothing changed", BOTH, BOTH, [], []),
    Situation(
        "the deploy of the engine that changed, before the death of another",
        BOTH,
        B_LOST,
        [
            marker(MarkerKind.DEATH, "a", later_s=-60, text="died of KeyError"),
            marker(MarkerKind.DEPLOY, "b", later_s=-30, text="was started with vLLM 0.11 → 0.12"),
        ],
        [
            "Engine B was started with vLLM 0.11 → 0.12 (00:19:30, 30.00 s before the change): 100 % of the change is of its"
            " own requests",
            "Engine A died of KeyError (00:19:00, 1 min 00 s before the change)",
        ],
    ),
    Situation(
        "a death; the requests went elsewhere",
        BOTH,
        [row("a", asked=4000, taken=800)],
        [marker(MarkerKind.DEATH, "b", later_s=5, text="died")],
        ["Engine B died (00:20:05, 5.00 s after the change): it was asked for 1,000 tokens a minute before, 0 after"],
    ),
    Situation(
        "traffic",
        BOTH,
        MORE,
        [],
        ["More was asked for: 2,000 tokens a minute before, 6,000 after, at the same reuse"],
    ),
    Situation("traffic begins", [], MORE, [], ["Nothing was asked for before, and 6,000 tokens a minute after"]),
    Situation("traffic ends", BOTH, [], [], ["Nothing was asked for after, and 2,000 tokens a minute before"]),
    Situation(
        "an eviction storm",
        HELD,
        EVICTING,
        [],
        ["Evictions: 100 % of what is computed more had been held and evicted: 0 tokens a minute before, 800 after"],
    ),
    Situation(
        "a reset",
        HELD,
        RESET,
        [marker(MarkerKind.RESET, "a", later_s=-1, text="reset vLLM's own prefix cache")],
        [
            "Engine A reset vLLM's own prefix cache (00:19:59, 1.00 s before the change): 100 % of the change is tokens held"
            " until a reset"
        ],
    ),
    Situation(
        "a new tenant",
        HELD,
        TENANT,
        [],
        ["Tenant Acme is new: 100 % of the change is computed for it, 2,000 tokens a minute"],
    ),
    Situation(
        "a new tenant, beside requests of none",
        HELD,
        [*TENANT, row("a", asked=2000, cause__new__=2000)],
        [],
        ["Tenant Acme is new: 50 % of the change is computed for it, 2,000 tokens a minute"],
    ),
    Situation(
        "requests without a tenant, where all had one",
        TENANT[-1:],
        [TENANT[-1], row("a", asked=2000, cause__new__=2000)],
        [],
        [
            "Requests without a cache salt or adapter are new: 100 % of the change is computed for them, 2,000 tokens a"
            " minute",
            "More was asked for: 2,000 tokens a minute before, 4,000 after, at the same reuse",
        ],
    ),
    Situation(
        "more tenants than are distinguished",
        TENANT[-1:],
        [TENANT[-1], row("a", asked=2000, cause__new__=2000, tenant__other__new=2000)],
        [],
        [
            "Other tenants are new: 100 % of the change is computed for them, 2,000 tokens a minute",
            "More was asked for: 2,000 tokens a minute before, 4,000 after, at the same reuse",
        ],
    ),
    Situation(
        "prompts that begin as none did",
        HELD,
        [*HELD, row("a", asked=2000)],
        [],
        ["Prompts that begin with 01234567 are new: 100 % of the change is computed for them, 2,000 tokens a minute"],
        {"0123456789abcdef": {"asked": 2000}},
    ),
    Situation(
        "long before, and what explains nothing",
        BOTH,
        B_LOST,
        [
            marker(MarkerKind.DEATH, "b", later_s=-BEFORE_NS // S - 1),
            marker(MarkerKind.DROP, "b"),
        ],
        [],
    ),
]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.name)
def test_what_is_named(situation: Situation) -> None:
    found = changes(Side(situation.before, 1), Side(situation.after, 1, situation.prefixes), {})
    causes = likely_causes(found, situation.markers, at_ns=AT_NS, name=str.upper, tenant_names=TENANTS)
    assert [each.text for each in causes] == situation.said


def test_between_two_ranges_that_are_apart_all_markers_count() -> None:
    deploy = marker(MarkerKind.DEPLOY, "a", later_s=-900)
    assert likely_causes([], [deploy], at_ns=AT_NS, name=str.upper, tenant_names=TENANTS) == []
    between = likely_causes([], [deploy], at_ns=AT_NS, since_ns=AT_NS - 1000 * S, name=str.upper, tenant_names=TENANTS)
    assert [each.text for each in between] == ["Engine A was started (00:05:00, 15 min 00 s before the change)"]


def test_an_end_is_part_of_the_launch_in_its_place() -> None:
    markers = [marker(MarkerKind.END, "a", text="ended"), marker(MarkerKind.END, "b"), marker(MarkerKind.DEPLOY, "a")]
    found = likely_causes([], markers, at_ns=AT_NS, name=str, tenant_names={})
    assert [(each.kind, each.engine) for each in found] == [("deploy", "a"), ("end", "b")]


def test_the_number_of_named_causes_is_limited() -> None:
    markers = [marker(MarkerKind.RESTART, f"e{number}") for number in range(2 * MOST)]
    assert len(likely_causes([], markers, at_ns=AT_NS, name=str, tenant_names={})) == MOST
