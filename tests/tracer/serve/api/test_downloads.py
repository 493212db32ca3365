"""What the page of a request gives away, and what an audit of it says: no more than the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from downloads import Giving
from history import heartbeats, history, loaded
from incidents.corpus import INCIDENTS
from incidents.corpus.look_alikes import LOOK_ALIKES
from incidents.incident import Incident
from stores import FleetTracer, clickhouse

from kvtrail.tracer.events import semconv
from kvtrail.tracer.history.audit import audit
from kvtrail.tracer.history.history import load
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.ingest.trace_file import messages
from kvtrail.tracer.serve.api import requests as download

GOLDEN = Path(__file__).parents[3] / "golden"
STREAMS = [*sorted(GOLDEN.glob("*.jsonl")), *sorted((GOLDEN / "versions").glob("*.otlp"))]
STALE = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nend"
FIRST = {incident.rule: incident for incident in reversed(INCIDENTS)}
OF_INCIDENTS = [
    pytest.param(each, id=each.id, marks=() if each is FIRST[each.rule] else pytest.mark.long) for each in INCIDENTS
]
"""The first incident of each rule, and by `make test-all` the others."""
RESTS_ON_OTHERS = ("reset-hit", "block-reuse")
"""Rules that name an event of the engine, and one of another request."""


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Giving]:
    made = Giving(tmp_path)
    yield made
    made.pipeline.close()


@pytest.mark.parametrize("incident", OF_INCIDENTS)
def test_a_part_of_an_incident_says_no_more_than_its_page(incident: Incident, sidecar: Giving) -> None:
    events = incident.events()
    sidecar.hear([*events, *heartbeats(events, later_s=incident.later_s)])
    sidecar.assert_parts_say_no_more_than_pages()


def test_a_part_of_what_is_legal_says_so_too(tmp_path: Path) -> None:
    for number, each in enumerate(LOOK_ALIKES[::4]):
        folder = tmp_path / str(number)
        folder.mkdir()
        sidecar = Giving(folder)
        events = each.events()
        sidecar.hear([*events, *heartbeats(events, later_s=each.later_s)])
        sidecar.assert_parts_say_no_more_than_pages()
        sidecar.pipeline.close()


@pytest.mark.parametrize("stream", STREAMS, ids=lambda path: path.name)
def test_a_part_of_a_recorded_stream_says_no_more_than_its_page(stream: Path, sidecar: Giving) -> None:
    with stream.open("rb") as file:
        for message in messages(file):
            if message.is_json and message.damage is None and message.data.strip():
                try:
                    sidecar.take(otlp_json.to_protobuf(json.loads(message.data)))
                except ValueError:  # the line at which a golden trace was cut off
                    continue
            elif not message.is_json:
                sidecar.take(message.data)
    assert sidecar.assert_parts_say_no_more_than_pages()


def test_of_a_loss_the_part_says_no_more_than_its_page(tmp_path: Path) -> None:
    """A gap that cutting made is no loss; one of the recording still is, wherever it was."""
    other = "L 100 c0 h0 -> 0\nA 0\nS 0+100\nend"
    events = history(f"{STALE}\n" + "\n".join(f"b: {line}" for line in other.splitlines()))
    for lost in range(len(events)):
        folder = tmp_path / str(lost)
        folder.mkdir()
        sidecar = Giving(folder)
        sidecar.hear([event for at, event in enumerate(events) if at != lost])
        sidecar.pipeline.tidy()
        missing = [audit.missing for audit in sidecar.assert_parts_say_no_more_than_pages()]
        assert sum(missing) in (0, 1), lost  # none, where what was lost was the last of its request
        sidecar.pipeline.close()


@pytest.mark.parametrize("rule", RESTS_ON_OTHERS)
def test_a_part_holds_the_spans_that_its_findings_name_also_those_of_the_engine_and_of_others(
    rule: str, sidecar: Giving
) -> None:
    sidecar.hear(an_incident_of(rule).events())
    assert rule in named_and_held(sidecar)


def an_incident_of(rule: str) -> Incident:
    return next(incident for incident in INCIDENTS if incident.rule == rule)


def named_and_held(sidecar: Giving) -> set[str]:
    """The rules that found something of requests, each by spans that the request's part holds."""
    rules = set()
    for page, path in sidecar.pages():
        spans = {(span.span_id, span.start_ns) for _, span in load([path]).moments}
        for finding in page["findings"]:
            rules.add(finding["rule"])
            assert {(witness["span_id"], witness["at_ns"]) for witness in finding["witness"]} <= spans, finding["rule"]
    return rules


@pytest.mark.parametrize("rule", RESTS_ON_OTHERS)
@pytest.mark.parametrize("bound", ["MAX_SPANS", "MAX_NAMED"])
def test_a_part_without_room_for_others_says_no_more_than_its_page(
    bound: str, rule: str, sidecar: Giving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, bound, 0)
    sidecar.hear(an_incident_of(rule).events())
    assert sidecar.assert_parts_say_no_more_than_pages()


def test_a_part_says_what_it_is_and_shows_what_its_request_shows(sidecar: Giving) -> None:
    sidecar.hear(history(f"b: S 0+256\nb: end\n{STALE}"))
    parts = {page["request"]["request"]: path for page, path in sidecar.pages()}
    for path in parts.values():
        for _, span in load([path]).moments:
            assert span.resource[semconv.SAMPLED_ONLY.key] is True
    (found,) = [finding for path in parts.values() for finding in audit([path]).findings]
    assert (found.rule, found.count) == ("stale-lookup", 1)


def test_parts_and_the_whole_are_judged_side_by_side(sidecar: Giving) -> None:
    """Each has numbers of its own: neither takes the other's events for its own, nor for repeated ones."""
    events = history(f"{STALE}\n" + "\n".join(f"b: {line}" for line in STALE.splitlines()))
    sidecar.hear(events)
    paths = [path for _, path in sidecar.pages()]
    whole = sidecar.folder / "whole.jsonl"
    whole.write_text(otlp_json.spans_to_json_line([span for _, span in loaded(events).moments]) + "\n")
    both = audit(paths)
    assert (len(paths), both.missing, both.repeated, both.events) == (2, 0, 0, len(events))
    assert {finding.rule for finding in both.findings} == {"stale-lookup"}
    assert sum(both.verdicts.values()) == len(both.findings) == 2
    together = audit([whole, *paths])
    assert (together.missing, together.repeated) == (0, 0)
    assert {finding.id for finding in together.findings} == {finding.id for finding in both.findings}


@pytest.mark.parametrize("rule", [*RESTS_ON_OTHERS, "stale-lookup"])
def test_a_part_out_of_clickhouse_says_no_more_than_its_page(rule: str, tmp_path: Path) -> None:
    tracer = FleetTracer(tmp_path, clickhouse())
    events = an_incident_of(rule).events()
    for recorder in dict.fromkeys(event.recorder for event in events):
        tracer.hear([event for event in events if event.recorder == recorder])
    tracer.send()
    elsewhere = tmp_path / "api"
    elsewhere.mkdir()
    sidecar = Giving(elsewhere)
    sidecar.reader = tracer.fleet
    assert sidecar.assert_parts_say_no_more_than_pages()
    assert rule in named_and_held(sidecar)
    tracer.pipeline.close()
    sidecar.pipeline.close()


def test_the_engine_of_a_part_is_not_judged_by_its_spans(sidecar: Giving) -> None:
    """Another request stored what this one found: without that, it would look like a hit on nothing."""
    sidecar.hear(history("b: S 0+256\nb: end\nL 749 c0 h256 -> 256\nA 256\nS 256+493\nend"))
    for _, path in sidecar.pages():
        assert not audit([path]).findings
