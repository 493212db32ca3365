"""Recorded histories driven again with real LMCaches: the adapters of several versions, unchanged, each in a process of its
own. Code that none of us wrote."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forks
import pytest
import real_lmcache
from command_line import exported
from processes import Tracer, until

from kvtrail.connector.demo.workload import stale_lookup
from kvtrail.connector.simulate import in_memory
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.tracer.ingest import otlp_json

REPLAY = ("-m", "kvtrail", "replay")
STALE = "AssertionError: Mismatch in tokens to load: 256 vs 256 (tokens in lmcache) - 384 (tokens in vllm) - 0 (full"


def against(version: str, trace: Path, **config: Any) -> tuple[int, dict[str, Any]]:
    """The exit code and the report of a re-drive with this LMCache's connector."""
    path = os.pathsep.join(map(str, real_lmcache.folders(version)))
    run = forks.run(
        [
            *REPLAY,
            trace,
            "--against",
            "LMCacheConnectorV1",
            "--json",
            *(["--config", json.dumps(config)] if config else []),
        ],
        environment=os.environ | {"PYTHONPATH": path},
    )
    assert run.stdout, run.stderr[-4000:]
    return run.returncode, json.loads(run.stdout)


@pytest.fixture(scope="module")
def from_the_bare_scheduler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bug as it is injected into our own connector."""
    folder = tmp_path_factory.mktemp("bare")
    transfer = {
        "kv_connector": "Faulty:stale-lookup:OffloadConnector",
        "kv_connector_module_path": "kvtrail.connector",
        "kv_connector_extra_config": {"kvtrail": {"level": "detailed"}},
    }
    with in_memory.exporters() as exporters:
        bare = BareScheduler(folder / "model", transfer)
        for job in stale_lookup():
            bare.add(job.id, list(job.prompt), job.max_tokens)
        with pytest.raises(AssertionError, match="Mismatch in tokens to load"):
            bare.run()
        in_memory.flush()
    spans = [span for each in exporters for span in each.spans()]
    trace = folder / "trace.jsonl"
    trace.write_text(otlp_json.spans_to_json_line(spans) + "\n")
    return trace


@pytest.fixture
def engine(tmp_path: Path, start_tracer: Callable[..., Tracer]) -> Callable[[str], Path]:
    """A real vLLM engine with a real LMCache, recorded into a trace file by a real tracer."""

    def record(version: str) -> Path:
        tracer = start_tracer()
        real_lmcache.run(tmp_path, version, grpc_port=tracer.grpc_port, kvtrail={"level": "detailed"})
        # The export process sends the last heartbeat of the engine, which was ended hard.
        until(lambda: any(each["status"] == "closed" for each in tracer.get("/api/health")["recorders"]))
        tracer.end()
        return exported(tracer.store, tmp_path / f"{version}.jsonl")

    return record


def stale(report: dict[str, Any], side: str) -> list[dict[str, Any]]:
    """The answers that break the rule, in the recording or in the run."""
    return [each for each in report["answers"] if each[f"{side}_breaks"] == ["stale-lookup"]]


def test_0_3_10_reproduces_the_assertion_of_the_report(from_the_bare_scheduler: Path) -> None:
    code, report = against("0.3.10", from_the_bare_scheduler)
    assert code == 1
    assert report["outcomes"]["different"] == report["outcomes"]["not comparable"] == 0
    assert report["error"].startswith(STALE)
    assert report["answers"][-1]["driven"]["error"].startswith(STALE)
    again = stale(report, "driven")
    assert {(each["outcome"], each["driven"]["returned"]) for each in again} == {("same", 256)}
    assert len(again) > 5


@pytest.mark.parametrize(
    ("version", "config", "new_rules"),
    [
        pytest.param("0.3.11", {}, [], marks=pytest.mark.long),
        ("0.5.6", {}, []),
        pytest.param("0.3.10", {"use_native": True}, ["plan-blocks", "store-uncomputed"], marks=pytest.mark.long),
    ],
)
def test_later_ones_and_vllms_own_fix_it(
    from_the_bare_scheduler: Path, version: str, config: dict[str, Any], new_rules: list[str]
) -> None:
    """`use_native` is the adapter that vLLM 0.32 brings along; it needs an LMCache of its time beside it. It plans wrong
    copies after a preemption, which the recording with 0.3.10's own adapter does not show."""
    code, report = against(version, from_the_bare_scheduler, **config)
    assert code == (1 if new_rules else 0)
    first = report["answers"][report["first_difference"]]
    assert (first["recorded"]["returned"], first["driven"]["returned"]) == (256, 0)
    assert (first["recorded_breaks"], first["driven_breaks"]) == (["stale-lookup"], [])
    assert report["outcomes"]["different"] == len(stale(report, "recorded"))
    assert (report["error"], sorted({each["rule"] for each in report["findings"]})) == (None, new_rules)


def test_a_real_engines_recording_comes_out_answer_for_answer_and_is_fixed_by_later_ones(
    engine: Callable[[str], Path],
) -> None:
    trace = engine("0.3.10")
    code, same = against("0.3.10", trace)
    assert (code, same["outcomes"]["different"], same["outcomes"]["not comparable"]) == (1, 0, 0)
    assert same["recorded_error"].startswith(STALE)
    assert same["error"].startswith(STALE)
    code, fixed = against("0.5.6", trace)
    assert code == 0
    assert fixed["outcomes"]["different"] == len(stale(fixed, "recorded")) > 5
    assert fixed["answers"][fixed["first_difference"]]["driven"]["returned"] == 0


@pytest.mark.long  # a new fault is told apart in `test_redrive.py`
def test_an_older_version_shows_a_new_fault(engine: Callable[[str], Path]) -> None:
    """The recording of 0.3.11 comes out answer for answer, without its plans for wrong blocks: those come from a list that
    it shares with vLLM's model runner, which is not driven. 0.3.10 dies of its stale answers."""
    trace = engine("0.3.11")
    code, same = against("0.3.11", trace)
    assert (code, same["outcomes"]["different"], same["outcomes"]["not comparable"]) == (0, 0, 0)
    assert same["outcomes"]["same"] > 50
    code, older = against("0.3.10", trace)
    assert code == 1
    first = older["answers"][older["first_difference"]]
    assert (first["recorded_breaks"], first["driven_breaks"]) == ([], ["stale-lookup"])
    assert first["driven"]["returned"] == 256
    assert older["error"].startswith("AssertionError: Mismatch")
