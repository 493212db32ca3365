"""Recordings of the demo's workloads, and how a run becomes a history."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvtrail.connector.demo import workload
from kvtrail.connector.recording.exceptions import without_place
from kvtrail.connector.simulate.redrive.comparison import LOOKUP, Comparison, Outcome
from kvtrail.connector.simulate.run import Played
from kvtrail.connector.simulate.scenario import Arrival, CachesReset, Scenario
from kvtrail.tracer.history.history import History, load
from kvtrail.tracer.ingest import otlp_json

OURS: dict[str, Any] = {"chunk_size": 64, "cpu_bytes_to_use": 50_000_000}


def of_jobs(jobs: Sequence[workload.DemoRequest], **more: Any) -> Scenario:
    """The demo's workload, played twice, so that the second pass loads from the host. The prompts' tokens are others; their
    lengths and what they share are the demo's."""
    shared = {job.prompt[:512]: f"head-{n}" for n, job in enumerate(jobs)}
    arrivals = []
    for part in range(2):
        for job in jobs:
            head, rest = (512, len(job.prompt) - 512) if len(jobs) > 8 else (0, len(job.prompt))
            prompt = ((shared[job.prompt[:512]], head), (job.id, rest))
            at_step = job.arrives_at_step + 600 * part
            arrivals.append(Arrival(f"{part}-{job.id}", tuple(s for s in prompt if s[1]), job.max_tokens, at_step))
    return Scenario(arrivals=tuple(arrivals), resets=(CachesReset(599),), **more)


DEMO = of_jobs(workload.shared_prefixes())
STALE = of_jobs(workload.stale_lookup())


def recorded(played: Played, folder: Path, *, order: int | None = None) -> History:
    """The run as it comes out of a trace file."""
    lines = [otlp_json.spans_to_json_line([span]) for span in played.spans]
    if order is not None:
        random.Random(order).shuffle(lines)
    path = folder / f"trace-{order}.jsonl"
    path.write_text("\n".join(lines))
    return load([path])


def assert_the_same(comparison: Comparison) -> None:
    """Every answer is the recorded one, down to what the store held and where the answer came from."""
    assert comparison.parting is None, comparison.parting
    assert set(comparison.outcomes) == {Outcome.SAME}
    for each in comparison.answers:
        assert _comparable(each.recorded) == _comparable(each.driven), each
    assert any(each.call == LOOKUP for each in comparison.answers)
    assert comparison.preemptions == comparison.driven_preemptions
    assert comparison.hits == comparison.driven_hits


def _comparable(answer: Any) -> Any:
    """An answer without where an error was raised."""
    return {name: without_place(value) if name == "error" else value for name, value in answer.items()}
