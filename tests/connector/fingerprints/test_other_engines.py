"""Bytes on engines that load between steps, speculate, or have two ranks: each in processes of its own."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import byte_engines
import forks
import pytest
from processes import serve

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.model.events import BlockCheck, Event
from kvtrail.tracer.model.findings import Finding

ALL = {"fingerprints": "all", "fingerprint_held": "all"}
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}


def offload(name: str = "OffloadConnector", *, guard: str = "observe") -> dict[str, Any]:
    """An engine's connector, all of whose bytes are looked at."""
    module = {} if name == "OffloadConnector" else {"kv_connector_module_path": "kvtrail.connector"}
    extra = {"chunk_size": 64, "kvtrail": {**ALL, "guard": guard}}
    return {"kv_connector": name, **module, "kv_connector_extra_config": extra, "kv_load_failure_policy": "recompute"}


def between_steps(name: str, *, guard: str = "observe") -> dict[str, Any]:
    return offload(f"Traced:async_offload:{name}", guard=guard)


def looks(events: list[Event]) -> Counter[str]:
    """Blocks by look, and those that were unknown or wrong."""
    counts: Counter[str] = Counter()
    for event in events:
        if isinstance(event, BlockCheck):
            counts += Counter(
                {event.check_look: event.check_blocks, "unknown": event.check_unknown, "wrong": event.wrong}
            )
    return counts


def found(events: list[Event]) -> list[Finding]:
    detector = Detector()
    detector.feed(events)
    detector.settle()
    return [finding for held in detector.findings.values() for finding in held.values()]


RIGHT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "speculation": (offload(), {"speculative_config": DRAFTS}),
    "asynchronous loads": (between_steps("AsyncOffloadConnector"), {}),
    "asynchronous loads and scheduling": (between_steps("AsyncOffloadConnector"), {"async_scheduling": True}),
}


@pytest.mark.parametrize("run", RIGHT)
def test_a_correct_connector_has_nothing_wrong(tmp_path: Path, run: str) -> None:
    connector, overrides = RIGHT[run]
    events = byte_engines.as_without(tmp_path, connector, **overrides)
    counts = looks(events)
    assert (counts["wrong"], counts["unknown"]) == (0, 0)
    assert min(counts[look] for look in ("computed", "loaded", "admitted", "held")) > 5, counts
    assert found(events) == []


def test_a_load_that_is_reported_before_it_is_there_is_early(tmp_path: Path) -> None:
    findings = found(byte_engines.as_without(tmp_path, between_steps("HastyOffloadConnector")))
    assert {finding.rule for finding in findings} == {"byte-early"}


def test_wrong_bytes_of_an_asynchronous_load_are_healed(tmp_path: Path) -> None:
    """The engine makes the tokens that it makes without a connector."""
    events = byte_engines.as_without(tmp_path, between_steps("ExchangingOffloadConnector", guard="heal"))
    findings = found(events)
    assert {finding.rule for finding in findings} == {"byte-drift"}
    assert all(finding.healed == finding.count for finding in findings)


def test_each_of_two_ranks_looks_at_its_own_bytes(tmp_path: Path) -> None:
    tracer = serve(tmp_path)
    try:
        for fault in ("", "blocks-exchanged"):
            name = f"Faulty:{fault}:OffloadConnector" if fault else "OffloadConnector"
            environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{tracer.grpc_port}"}
            engine = forks.start(
                byte_engines.two_ranks, tmp_path / (fault or "right"), {**offload(name), "engine_id": fault or "right"},
                environment=environment, out=tmp_path / f"{fault or 'right'}.log",
            )  # fmt: skip
            engine.join(forks.SLOW_S)
            assert engine.exitcode == 0, (tmp_path / f"{fault or 'right'}.log").read_text()[-3000:]
        findings = tracer.get("/api/findings")
        assert {finding["engine"] for finding in findings} == {"blocks-exchanged"}
        assert {finding["rule"] for finding in findings} == {"byte-drift"}
        ranks = {witness["rank"] for finding in findings for witness in finding["witness"]}
        assert ranks == {0, 1}
    finally:
        tracer.end()
