"""The ways in which kvtrail judges what arrives: as the sidecar does, live, with its store, and from a trace file.

Each takes a `Delivery` and gives what was found, and how often each rule gave which verdict.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from damages import Batch, Delivery, S
from history import as_json

from kvtrail.tracer.detect.detector import GRACE_NS, Detector
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import FIELDS, Event
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.history import judging
from kvtrail.tracer.history.audit import audit
from kvtrail.tracer.history.history import load
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.model.findings import Finding, Verdict
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive import engines, receiving, storing
from kvtrail.tracer.serve.receive import pipeline as pipelines
from kvtrail.tracer.serve.receive.pipeline import Pipeline
from kvtrail.tracer.store.sqlite.store import SqliteReader, SqliteWriter

TIDY_NS = S
FORGET_NS = 60 * S
WAITS_S = 30
"""Seconds that pass after the last arrival: more than the sidecar's patience."""
MAX_TIDIES = 40
"""Of a stretch in which nothing arrives."""
Name = tuple[str, str, int]
"""A finding: rule, request, epoch."""


@dataclass
class Judged:
    """What a sidecar says.

    Attributes:
        found: the findings by name.
        verdicts: how often each rule gave which verdict.
    """

    found: dict[Name, Finding] = field(default_factory=dict)
    verdicts: Counter[tuple[str, Verdict]] = field(default_factory=Counter)

    def add(self, findings: Iterable[Finding]) -> None:
        self.found.update({(each.rule, each.request, each.epoch): each for each in findings})


def live(delivery: Delivery) -> Judged:
    """A detector that is fed as batches arrive, and loses all that it knows at a restart."""
    judged = Judged()
    for batches in _lives_of_sidecar(delivery):
        detector = Detector()
        for moment_ns, batch in moments(batches):
            if batch is not None:
                judged.add(detector.feed(batch.events, at_ns=moment_ns))
            else:
                judged.add(detector.settle(before_ns=moment_ns - GRACE_NS))
                judged.add(detector.tick())
                detector.forget_finished(before_ns=moment_ns - FORGET_NS)
        judged.add(detector.settle())
        judged.add(detector.tick())
        judged.verdicts.update(detector.verdicts)
    return judged


def stored(delivery: Delivery, folder: Path) -> Judged:
    """The sidecar's pipeline with its store, which a restart opens again."""
    judged = Judged()
    with _clock() as clock:
        for batches in _lives_of_sidecar(delivery):
            pipeline = Pipeline(SqliteWriter(folder / "kvtrail.db"), Metrics())
            pipeline.recovery.run()
            for moment_ns, batch in moments(batches):
                clock.now_ns = moment_ns
                if batch is not None:
                    pipeline.ingest(otlp_json.to_protobuf(json.loads(line(batch.events))), transport="grpc")
                else:
                    pipeline.tidy()
            judged.verdicts.update(pipeline.detector.verdicts)
            pipeline.close()
    for row in SqliteReader(folder / "kvtrail.db").findings(limit=100_000):
        known = {name: row[name] for name in Finding.__dataclass_fields__ if name in row}
        judged.add([Finding(**known)])
    return judged


def read(delivery: Delivery, folder: Path) -> tuple[Judged, Judged]:
    """A trace file of what arrives: audited, and judged event by event as a replay does."""
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{line(batch.events)}\n" for batch in delivery.in_order()), encoding="utf-8")
    audited, replayed = Judged(), Judged()
    if delivery.batches:
        result = audit([path])
        audited.add(result.findings)
        audited.verdicts.update(result.checks)
        judged = judging.judge(load([path]).events)
        replayed.add(finding for findings in judged.found.values() for finding in findings)
        replayed.add(judged.late)
    return audited, replayed


def moments(batches: Sequence[Batch]) -> Iterator[tuple[int, Batch | None]]:
    """What happens to a sidecar, in order: a batch arrives; or, every second, it looks after what it waits for."""
    if not batches:
        return
    tidied_ns = batches[0].at_ns
    for batch in batches:
        missed = (batch.at_ns - tidied_ns) // TIDY_NS
        for number in range(max(0, missed - MAX_TIDIES), missed):
            yield tidied_ns + (number + 1) * TIDY_NS, None
        tidied_ns += missed * TIDY_NS
        yield batch.at_ns, batch
    for number in range(WAITS_S):
        yield tidied_ns + (number + 1) * TIDY_NS, None


def line(events: Sequence[Event]) -> str:
    """A batch as a line of a trace file."""
    return otlp_json.spans_to_json_line(map(span_of, events))


def span_of(event: Event) -> Span:
    """The span that carries an event, with all that it says."""
    resource = (
        semconv.ENGINE_ID, semconv.RECORDER_ID, semconv.BLOCK_SIZE, semconv.CAPABILITIES, semconv.PATIENCE,
        semconv.ASYNC_SCHEDULING, semconv.SAMPLED_ONLY, semconv.LAUNCH, semconv.GROUPS,
    )  # fmt: skip
    own = (*semconv.COMMON, *FIELDS[event.kind])
    if event.request is None:
        own = tuple(each for each in own if each not in (semconv.EPOCH, semconv.REQUEST_SEQUENCE))
    return Span(
        trace_id=event.trace_id,
        span_id=event.span_id,
        parent_id="",
        name=semconv.span_name(event.kind),
        start_ns=event.start_ns,
        end_ns=event.end_ns,
        attributes={a.key: as_json(value) for a in own if (value := getattr(event, a.field)) not in (None, "")},
        resource={a.key: value for a in resource if (value := getattr(event, a.field)) is not None},
        scope=semconv.SCOPE,
        error=semconv.CUT_OFF_REASON if event.kind is semconv.Kind.CUT_OFF else event.error,
    )


def _lives_of_sidecar(delivery: Delivery) -> list[list[Batch]]:
    """The batches between one restart and the next."""
    ends = [*sorted(delivery.restarts), None]
    batches, found = delivery.in_order(), []
    for end in ends:
        found.append([batch for batch in batches if end is None or batch.at_ns < end])
        batches = batches[len(found[-1]) :]
    return found


@contextmanager
def _clock() -> Iterator[SimpleNamespace]:
    """The pipeline's clock, to be set."""
    clock = SimpleNamespace(now_ns=0)
    instead = SimpleNamespace(**vars(time) | {"time_ns": lambda: clock.now_ns, "monotonic_ns": lambda: clock.now_ns})
    with ExitStack() as stack:
        for module in (pipelines, receiving, engines, storing):
            stack.enter_context(patch.object(module, "time", instead))
        yield clock
