"""Recordings for re-runs: real schedulers with real connectors, written to a trace file."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.simulate import in_memory
from kvtrail.connector.simulate.check import profiles
from kvtrail.connector.simulate.run import play
from kvtrail.connector.simulate.stages import BareScheduler
from kvtrail.tracer.events.spans import Span
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.ingest.trace_file import TraceReader

DETAILED: dict[str, Any] = {"kvtrail": {"level": "detailed"}}


def served(path: Path, name: str, jobs: Sequence[DemoRequest], extra: dict[str, Any] | None = None) -> Path:
    """The demo's jobs, each added when it arrives; returns the trace file. A connector's error ends the recording."""
    with in_memory.exporters() as exporters, contextlib.suppress(AssertionError):
        bare = BareScheduler(path.parent / "model", _transfer(name, DETAILED if extra is None else extra))
        waiting = list(jobs)[::-1]
        while waiting or bare.scheduler.has_unfinished_requests():
            while waiting and waiting[-1].arrives_at_step <= bare.steps:
                job = waiting.pop()
                bare.add(job.id, list(job.prompt), job.max_tokens)
            bare.step()
    return _write(path, (span for each in exporters for span in each.spans()))


def tortured(path: Path, name: str, profile: str, extra: dict[str, Any], *, seed: int = 1) -> Path:
    """A scenario of `kvtrail check`; returns the trace file."""
    scenario = profiles.PROFILES[profile](random.Random(seed))
    return _write(path, play(scenario, _transfer(name, extra)).spans)


def in_another_order(path: Path, into: Path, *, seed: int, drop: float = 0.0) -> Path:
    """The recording with one span a line, shuffled, and without a part of them."""
    rng = random.Random(seed)
    spans = [span for span in TraceReader(path).spans() if rng.random() >= drop]
    rng.shuffle(spans)
    return _write(into, spans)


def _write(path: Path, spans: Iterable[Span]) -> Path:
    path.write_text("".join(otlp_json.spans_to_json_line([span]) + "\n" for span in spans))
    return path


def _transfer(name: str, extra: dict[str, Any]) -> dict[str, Any]:
    transfer = {
        "kv_connector": name,
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
        "kv_load_failure_policy": "recompute",
    }
    return transfer | ({"kv_connector_module_path": "kvtrail.connector"} if ":" in name else {})
