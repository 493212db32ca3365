"""Two senders with one recorder's id: the one never hides what the other has sent. A repeated span is no conflict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from history import history
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from sidecar import Sidecar
from wire import encoded

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.model.findings import Verdict

STORY = "L 749 c0 h256 -> 256\nA 256\nS 256+493\nend"
STALE = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nend"


def hear(sidecar: Sidecar, events: Sequence[Event], *, ids: str = "") -> None:
    """Take events of one recorder; `ids` is the first half of their spans' ids."""
    request = ExportTraceServiceRequest.FromString(encoded(events))
    for span in request.resource_spans[0].scope_spans[0].spans:
        span.span_id = ids.encode().ljust(4, b"\0") + span.span_id[4:]
    sidecar.pipeline.ingest(request.SerializeToString(), transport="grpc")


def conflicts(sidecar: Sidecar) -> float:
    samples = (sample for metric in sidecar.metrics.registry.collect() for sample in metric.samples)
    return sum(sample.value for sample in samples if sample.name == "kvtrail_events_conflicting_total")


def verdicts(sidecar: Sidecar) -> dict[str, Verdict]:
    detector = sidecar.pipeline.detector
    return {key[1]: detector.verdict(account) for key, account in detector.accounts.items()}


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    made = Sidecar(tmp_path)
    yield made
    made.pipeline.close()


def story(name: str, *, first: int, text: str = STORY) -> list[Event]:
    """A request of the one recorder, from this number on."""
    return [replace(event, sequence=first + number) for number, event in enumerate(history(text, request=name))]


def test_forged_numbers_do_not_hide_the_recorders_own(sidecar: Sidecar) -> None:
    mine = story("mine", first=0)
    hear(sidecar, mine)
    hear(sidecar, story("forged", first=len(mine)), ids="evil")
    hear(sidecar, story("drift", first=len(mine), text=STALE))
    assert conflicts(sidecar) == len(history(STORY))
    assert verdicts(sidecar)["drift"] is not Verdict.OK
    assert verdicts(sidecar)["forged"] is Verdict.UNKNOWN


def test_a_late_forgery_is_a_conflict(sidecar: Sidecar) -> None:
    mine = story("mine", first=0)
    hear(sidecar, mine)
    hear(sidecar, story("forged", first=0), ids="evil")
    assert conflicts(sidecar) == len(mine)


def test_both_in_one_request(sidecar: Sidecar) -> None:
    """A Collector joins what several clients send."""
    mine = story("mine", first=0)
    hear(sidecar, [*mine, *story("forged", first=0)])
    hear(sidecar, story("next", first=len(mine)))
    assert conflicts(sidecar) > 0
    assert verdicts(sidecar)["next"] is Verdict.OK, "what comes afterwards is whole again"


def test_what_is_sent_again_is_no_conflict(sidecar: Sidecar) -> None:
    events = [*story("mine", first=0), *story("next", first=len(history(STORY)))]
    hear(sidecar, events)
    for size in (1, 3, 5):
        for at in range(0, len(events), size):
            hear(sidecar, events[at : at + size])
    hear(sidecar, events[::-1])
    sidecar.pipeline.close()
    sidecar.start()
    hear(sidecar, events[1:])
    assert conflicts(sidecar) == 0
    assert set(verdicts(sidecar).values()) == {Verdict.OK}


def test_ids_are_known_again_after_a_restart(sidecar: Sidecar) -> None:
    hear(sidecar, story("mine", first=0))
    sidecar.pipeline.close()
    sidecar.start()
    hear(sidecar, story("forged", first=0), ids="evil")
    assert conflicts(sidecar) == len(history(STORY))


def test_a_number_far_ahead_makes_nothing_missing(sidecar: Sidecar) -> None:
    mine = story("mine", first=0)
    hear(sidecar, mine)
    hear(sidecar, story("far", first=10**9), ids="evil")
    hear(sidecar, story("drift", first=len(mine), text=STALE))
    sidecar.pipeline.tidy()
    assert conflicts(sidecar) == len(mine)
    assert sidecar.pipeline.events_missing == 0
    assert sum(recorder.missing for recorder in sidecar.pipeline.recorders.values()) == 0
    assert verdicts(sidecar)["drift"] is Verdict.DRIFT
    sidecar.pipeline.close()
    sidecar.start()
    sidecar.pipeline.tidy()
    assert sidecar.pipeline.events_missing == 0, "nor after a restart"
