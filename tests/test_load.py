"""The load generator's engines are lawful but for what is planted, and a sidecar that is killed under load finds that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from processes import free_port

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from fleet import DRIFTS, Engine

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.events import Unfamiliar
from kvtrail.tracer.ingest import decode
from kvtrail.tracer.ingest.protobuf import ProtobufDecoder
from kvtrail.tracer.model.findings import Verdict

pytestmark = pytest.mark.long
LOAD = Path(__file__).parents[1] / "benchmarks" / "load.py"


def test_all_that_is_planted_is_found_and_nothing_else() -> None:
    decoder, detector = ProtobufDecoder(), Detector()
    engines = [Engine(f"engine-{number}", drift_every=500) for number in range(3)]
    payloads = [engine.payload() for _ in range(20) for engine in engines]
    payloads += [payload for engine in engines for payload in engine.last()]
    for payload in payloads:
        spans = decoder.spans(payload.body)
        assert len(spans) == payload.spans
        events = list(map(decode.from_span, spans))
        assert not any(isinstance(event, Unfamiliar) for event in events)
        detector.feed(event for event in events if event is not None)
    detector.settle()
    planted = {finding for payload in payloads for finding in payload.findings}
    found = {(finding.rule, finding.request) for held in detector.findings.values() for finding in held.values()}
    assert found == planted
    assert {rule for rule, _ in planted} == set(DRIFTS)
    verdicts = {detector.verdict(account) for account in detector.accounts.values()}
    assert verdicts == {Verdict.OK, Verdict.DRIFT}
    assert len(detector.accounts) == len(detector.finished) == sum(payload.requests for payload in payloads)


def test_a_sidecar_that_is_killed_under_load_loses_nothing_that_it_acknowledged() -> None:
    ports = ["--grpc-port", str(free_port()), "--http-port", str(free_port())]
    quickly = ["--seconds", "4", "--rate", "2000", "--kill-every", "1", "--drift-every", "500", "--engines", "2"]
    command = [sys.executable, str(LOAD), *quickly, *ports]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "planted findings were found, and nothing else" in run.stdout
    assert " 0 times killed" not in run.stdout
