"""Real LMCaches in a real vLLM engine, traced: the one that has #2158's bug, and those that have it no more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import real_lmcache
from processes import Tracer, until
from real_lmcache import Run

pytest_plugins = ["real_lmcache"]
Findings = list[dict[str, Any]]
DETAILED = {"level": "detailed", "fingerprints": "off"}
BYTES = {"level": "basic", "fingerprints": "all"}
VERSIONS = [pytest.param("0.3.11", marks=pytest.mark.long), "0.5.6"]
MISMATCH = "AssertionError: Mismatch in tokens to load: 256 vs 256 (tokens in lmcache) - 384 (tokens in vllm)"


@pytest.fixture
def tracer(start_tracer: Callable[..., Tracer]) -> Tracer:
    return start_tracer()


def requests_of(tracer: Tracer, count: int) -> list[dict[str, Any]]:
    """The requests, once the tracer has heard the ends of all of them."""

    def ended() -> list[Any]:
        return [r for r in tracer.get("/api/requests", limit=500) if r["ended_ns"] is not None]

    until(lambda: len(ended()) == count, why=ended)
    return ended()


@pytest.mark.costly("starts a real engine with LMCache")
def test_0_3_10_dies_and_the_finding_says_why(tmp_path: Path, tracer: Tracer) -> None:
    """LMCache #2158. The bug is in the lookup; the assertion that kills the engine comes one call later."""
    died = real_lmcache.run(tmp_path, "0.3.10", grpc_port=tracer.grpc_port)
    assert died.error.startswith(MISMATCH), died
    (dead,) = [r for r in requests_of(tracer, 8) if r["status"] == "failed"]
    (finding,) = tracer.get("/api/findings")
    assert (finding["rule"], finding["request"], finding["healed"]) == ("stale-lookup", dead["request"], 0)
    first, stale = finding["witness"]
    assert (first["numbers"]["matched"], first["numbers"]["returned"], first["numbers"]["cached"]) == (256, 0, False)
    assert (stale["numbers"]["matched"], stale["numbers"]["returned"], stale["numbers"]["cached"]) == (256, 256, True)
    steps = tracer.get(f"/api/requests/{dead['request']}")["steps"]
    (raised,) = [step for step in steps if step["error"] and step["name"] != "kv.request"]
    assert died.error in raised["error"]
    assert first["at_ns"] < stale["at_ns"] < raised["start_ns"]


def test_0_3_10_lives_under_the_guard(tmp_path: Path, tracer: Tracer, without_lmcache: Run) -> None:
    healed = real_lmcache.run(tmp_path, "0.3.10", grpc_port=tracer.grpc_port, kvtrail={"guard": "heal"})
    assert healed.tokens == without_lmcache.tokens
    requests = requests_of(tracer, 16)
    findings: Findings = tracer.get("/api/findings")
    stale = [finding for finding in findings if finding["rule"] == "stale-lookup"]
    assert stale
    assert all(finding["healed"] == finding["count"] for finding in stale)
    moved_as_logged(healed, requests)
    shows_what_it_holds(tracer)


@pytest.mark.parametrize("version", VERSIONS)
def test_later_ones_have_no_stale_lookups_but_store_wrong_blocks(
    tmp_path: Path, tracer: Tracer, without_lmcache: Run, version: str
) -> None:
    """A defect of theirs: a resumed request's list of blocks is vLLM's own, and vLLM appends to it too."""
    lived = real_lmcache.run(tmp_path, version, grpc_port=tracer.grpc_port, kvtrail=DETAILED)
    requests = requests_of(tracer, 16)
    moved_as_logged(lived, requests)
    assert lived.tokens[0] == without_lmcache.tokens[0], "what is stored wrongly is loaded in the second pass only"
    wrong = {job for job, tokens in lived.tokens[1].items() if tokens != without_lmcache.tokens[1][job]}
    findings: Findings = tracer.get("/api/findings")
    for rule in ("block-shortage", "plan-blocks"):  # from the counts alone, and against the scheduler's own table
        assert {finding["external"] for finding in findings if finding["rule"] == rule} == {f"0-{job}" for job in wrong}
    assert {finding["rule"] for finding in findings} == {"block-shortage", "plan-blocks"}
    assert wrong


@pytest.mark.long  # healing below looks at the same blocks
@pytest.mark.parametrize("version", ["0.3.11", "0.5.6"])
def test_bytes_alone_name_exactly_the_requests_with_wrong_tokens(
    tmp_path: Path, tracer: Tracer, without_lmcache: Run, version: str
) -> None:
    """The same defect, without a probe: nothing is known of LMCache but what its blocks hold."""
    lived = real_lmcache.run(tmp_path, version, grpc_port=tracer.grpc_port, probed=False, kvtrail=BYTES)
    requests_of(tracer, 16)
    wrong = {job for job, tokens in lived.tokens[1].items() if tokens != without_lmcache.tokens[1][job]}
    findings: Findings = tracer.get("/api/findings")
    assert {finding["external"] for finding in findings if finding["rule"] == "byte-drift"} == {
        f"1-{job}" for job in wrong
    }
    assert wrong


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_by_default_the_first_wrong_answer_is_named_and_every_other(
    tmp_path: Path, tracer: Tracer, without_lmcache: Run, seed: int
) -> None:
    """By a few bytes of every block. The probe sees nothing."""
    plain = real_lmcache.run(tmp_path / "plain", None, passes=1, seed=seed) if seed else without_lmcache
    ran = real_lmcache.run(tmp_path, "0.5.6", grpc_port=tracer.grpc_port, probed=False, seed=seed)
    requests_of(tracer, 16)
    wrong = {f"1-{job}" for job, tokens in ran.tokens[1].items() if tokens != plain.tokens[0][job]}
    findings: Findings = tracer.get("/api/findings")
    assert wrong
    assert {finding["external"] for finding in findings} == wrong
    assert {finding["rule"] for finding in findings} == {"byte-drift"}
    assert all("hold" in finding["explanation"] for finding in findings)


def test_wrong_bytes_are_healed(tmp_path: Path, tracer: Tracer, without_lmcache: Run) -> None:
    heal = BYTES | {"guard": "heal"}
    healed = real_lmcache.run(tmp_path, "0.5.6", grpc_port=tracer.grpc_port, probed=False, kvtrail=heal)
    requests_of(tracer, 16)
    assert healed.tokens == without_lmcache.tokens
    assert any(finding["rule"] == "byte-drift" for finding in tracer.get("/api/findings"))


@pytest.mark.long  # of a version between the oldest and the newest
def test_wrong_bytes_are_not_healed_where_that_ends_the_engine(tmp_path: Path, tracer: Tracer) -> None:
    """A defect of 0.3.11: tokens that vLLM computes again after a failed load are appended to a request's list once more."""
    heal = BYTES | {"guard": "heal"}
    lived = real_lmcache.run(tmp_path, "0.3.11", grpc_port=tracer.grpc_port, probed=False, kvtrail=heal)
    assert lived.error == ""
    requests_of(tracer, 16)
    findings: Findings = tracer.get("/api/findings")
    assert {(finding["rule"], finding["healed"]) for finding in findings} == {("byte-drift", 0)}


@pytest.mark.parametrize("version", VERSIONS)
def test_with_that_mended_they_break_no_rule(
    tmp_path: Path, tracer: Tracer, without_lmcache: Run, version: str
) -> None:
    lived = real_lmcache.run(tmp_path, version, grpc_port=tracer.grpc_port, mended=True, kvtrail=DETAILED)
    requests = requests_of(tracer, 16)
    assert lived.tokens == without_lmcache.tokens
    assert tracer.get("/api/findings") == []
    assert {request["verdict"] for request in requests} == {"ok"}
    moved_as_logged(lived, requests)
    shows_what_it_holds(tracer)
    lookups = sum(request["lookups"] for request in requests)
    assert lookups > 2 * len(requests), "the engine must have been short of room, or nothing was tried"


@pytest.mark.long  # the rule has its fault and its incident
def test_0_5_6_with_capped_loads_over_reports(tmp_path: Path, tracer: Tracer) -> None:
    """A defect of theirs: the cap is answered, but what is planned is the cap from the chunk in which vLLM's tokens end."""
    extra: dict[str, Any] = {"lmcache.max_tokens_per_load": 256}
    died = real_lmcache.run(tmp_path, "0.5.6", grpc_port=tracer.grpc_port, mended=True, **extra)
    assert died.error.startswith("AssertionError: Mismatch in tokens to load: 256 vs 512 (tokens in lmcache) - 384"), (
        died
    )
    (dead,) = [r for r in requests_of(tracer, 16) if r["status"] == "failed"]
    (finding,) = tracer.get("/api/findings")
    assert (finding["rule"], finding["request"]) == ("over-report", dead["request"])
    assert finding["numbers"] == {"total": 790, "matched": 512, "computed": 384, "returned": 256, "at_most": 128}


def moved_as_logged(run: Run, requests: list[dict[str, Any]]) -> None:
    """Our loads and stores against those of LMCache's own log."""
    assert run.loaded > 2000
    assert sum(request["loaded"] for request in requests) == run.loaded
    assert sum(request["stored"] for request in requests) == run.stored


def shows_what_it_holds(tracer: Tracer) -> None:
    """The probe sees the store of this LMCache's worker."""
    engines = tracer.get("/api/fleet")["engines"]
    assert [r["held_bytes"] for engine in engines for r in engine["recorders"] if r["held_bytes"]], engines
