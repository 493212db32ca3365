"""Markers of what happens to engines."""

from __future__ import annotations

from typing import Any

import pytest
from history import heartbeats, history
from msgspec.structs import replace

from kvtrail.tracer.liveness.engine import EngineState, Launch
from kvtrail.tracer.liveness.markers import MOST_DIFFERENCES, differences, joined, of_events, of_launches
from kvtrail.tracer.model.engines import launched_with
from kvtrail.tracer.model.markers import Marker, MarkerKind

S = 10**9
ENGINES = {
    name: {"name": f"pod-{name}", "service": "chat", "model": model}
    for name, model in (("a", "m"), ("b", "m"), ("c", "m"), ("x", "other"))
}


def launch(engine: str, began_s: int, ended_s: int | None = None, *, how: str = "died", **about: Any) -> Launch:
    return Launch(
        engine=engine,
        launch=f"{engine}{began_s}",
        state=EngineState.RUNNING if ended_s is None else EngineState(how),
        began_ns=began_s * S,
        ended_ns=None if ended_s is None else ended_s * S,
        **about,
    )


def said(*launches: Launch, since_s: int = 0, until_s: int = 10_000) -> list[tuple[str, int, str, str]]:
    found = of_launches(launches, ENGINES, since_ns=since_s * S, until_ns=until_s * S)
    return [(each.kind, each.at_ns // S, each.engine, each.text) for each in found]


FIRST = "was started, the first of its service and model"


@pytest.mark.parametrize(
    ("launches", "expected"),
    [
        ((launch("a", 10),), [("deploy", 10, "a", FIRST)]),
        (
            (launch("a", 10), launch("b", 20)),
            [
                ("deploy", 10, "a", FIRST),
                ("deploy", 20, "b", "was started beside others of its service and model, with equal settings"),
            ],
        ),
        ((launch("a", 10), launch("x", 20)), [("deploy", 10, "a", FIRST), ("deploy", 20, "x", FIRST)]),
        (
            (launch("a", 10, 50, ended_by="KeyError: 'x'", lost=2), launch("a", 62)),
            [
                ("deploy", 10, "a", FIRST),
                ("death", 50, "a", "died of KeyError: 'x' with 2 open requests"),
                ("restart", 62, "a", "was started again, 12.00 s after it ended"),
            ],
        ),
        (
            (launch("a", 10, 50, how="drained"), launch("b", 20), launch("c", 62)),
            [
                ("deploy", 10, "a", FIRST),
                ("end", 50, "a", "ended"),
                ("deploy", 20, "b", "was started beside others of its service and model, with equal settings"),
                ("restart", 62, "c", "was started in the place of pod-a, 12.00 s after it ended"),
            ],
        ),
        (
            (launch("a", 10, 50, how="lost_contact"), launch("b", 700)),
            [
                ("deploy", 10, "a", FIRST),
                ("contact lost", 50, "a", "stopped reporting"),
                ("deploy", 700, "b", "was started beside others of its service and model, with equal settings"),
            ],
        ),
        (
            (
                launch("a", 10, 60, how="replaced", settings={"vLLM": "0.11", "max_num_seqs": "8", "x": "1"}),
                launch("b", 50, settings={"vLLM": "0.12", "max_num_seqs": "8", "y": "2"}),
            ),
            [
                ("deploy", 10, "a", FIRST),
                ("end", 60, "a", "stopped reporting and was replaced"),
                ("deploy", 50, "b", "was started with vLLM 0.11 → 0.12"),
            ],
        ),
        (
            (
                launch("a", 10, 50, how="drained", settings={"vLLM": "0.11"}),
                launch("a", 60, 70, how="drained", settings={"vLLM": "0.12"}),
                launch("a", 80, settings={"vLLM": "0.12"}),
            ),
            [
                ("deploy", 10, "a", FIRST),
                ("end", 50, "a", "ended"),
                ("deploy", 60, "a", "was started with vLLM 0.11 → 0.12"),
                ("end", 70, "a", "ended"),
                ("restart", 80, "a", "was started again, 10.00 s after it ended"),
            ],
        ),
    ],
    ids=[
        "first",
        "beside",
        "another model",
        "restart",
        "one takes one place",
        "too late",
        "rollout",
        "deploy in place",
    ],
)
def test_what_a_launch_is_follows_from_those_before_it(launches: tuple[Launch, ...], expected: list[Any]) -> None:
    assert sorted(said(*launches), key=str) == sorted(expected, key=str)


def test_a_launch_outside_the_range_is_what_others_are_compared_with() -> None:
    before, after = launch("a", 10, 50), launch("a", 60)
    assert [each[0] for each in said(before, after, since_s=55)] == ["restart"]
    assert [each[0] for each in said(before, after, until_s=50)] == ["deploy", "death"]


def test_an_engine_that_was_never_seen_has_no_beginning() -> None:
    assert said(Launch(engine="a", launch="", state=EngineState.NOT_OBSERVED, began_ns=0)) == []


def test_bytes_have_a_unit() -> None:
    one, other = {"cpu_bytes_to_use": "134217728", "n": "1"}, {"cpu_bytes_to_use": "67108864", "n": "2"}
    assert differences(one, other) == ["cpu_bytes_to_use 128 MiB → 64 MiB", "n 1 → 2"]


def test_many_differences_are_counted() -> None:
    one, other = ({f"s{number}": text for number in range(7)} for text in ("1", "2"))
    assert len(differences(one, other)) == 7
    text = said(launch("a", 10, settings=one), launch("b", 20, settings=other))[1][3]
    assert text.endswith(f"s3 1 → 2, and {7 - MOST_DIFFERENCES} more")


def test_settings_are_those_of_vllm_and_of_the_connector() -> None:
    resource = {
        "kvtrail.vllm.version": "0.12", "kvtrail.scheduler.max_sequences": 8, "kvtrail.prefix_caching": True,
        "kvtrail.connector.settings": '{"cpu_bytes_to_use": 64, "spec": {"n": 1}}', "service.name": "chat",
    }  # fmt: skip
    assert launched_with(resource) == {
        "vLLM": "0.12", "max_num_seqs": "8", "enable_prefix_caching": "true", "cpu_bytes_to_use": "64", "spec": '{"n": 1}',
    }  # fmt: skip
    assert launched_with({"kvtrail.connector.settings": "no json"}) == {}
    assert launched_with({"kvtrail.connector.settings": "[1]"}) == {}


def test_resets_and_drops_are_marked_where_they_happened_and_once() -> None:
    events = history("L 749 c0 h0 -> 0\nreset\nreset refused\nend")
    beats = [replace(each, recorder_dropped=number) for each in heartbeats(events, later_s=5) for number in (0, 3, 3)]  # type: ignore[call-arg]
    found = of_events([*events, *beats])
    assert [each.kind for each in found] == ["reset", "reset", "drop"]
    assert found[0].text == f"was asked to reset {events[0].connector}'s store"
    assert found[1].text.endswith(", which it refused")
    assert found[2].text == "had dropped 3 events since its recorder's start"
    assert found[2].at_ns == beats[0].end_ns
    assert of_events([*events, *beats]) == found, "what is received again has the same ids"
    assert len({each.id for each in found}) == 3


def marker(at_s: int, kind: MarkerKind = MarkerKind.RESET, engine: str = "a", text: str = "x") -> Marker:
    return Marker(id=f"{kind} {engine} {at_s}", kind=kind, at_ns=at_s * S, engine=engine, text=text)


def test_what_lies_close_together_is_joined() -> None:
    names = {name: f"pod-{name}" for name in ("a", "b")}
    every = [marker(1), marker(3), marker(4, engine="b"), marker(11), marker(2, MarkerKind.DEATH)]
    found = [*joined(every, names, step_ns=10 * S)]
    assert [(each.kind, each.at_ns // S, each.count, each.engine) for each in found] == [
        ("reset", 1, 3, ""), ("death", 2, 1, "a"), ("reset", 11, 1, "a"),
    ]  # fmt: skip
    assert found[0].text == "pod-a x, and 1 other engine likewise"
