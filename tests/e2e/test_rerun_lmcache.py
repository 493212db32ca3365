"""Recorded histories run again against real LMCaches: the adapters of several versions, unchanged, each in a process of its
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
from processes import Tracer, until

from kvtrail.connector.demo.workload import stale_lookup
from kvtrail.connector.simulate import in_memory
from kvtrail.connector.simulate.stages import BareScheduler
from kvtrail.tracer.events.events import Heartbeat
from kvtrail.tracer.ingest import decode, otlp_json

LOG = """\
(EngineCore_DP0 pid=7703) [2025-12-03 01:24:36,395] LMCache INFO: Reqid: cmpl-bench-97810623-16-0, Total tokens 10009, \
LMCache hit tokens: 0, need to load: 0, num_computed_tokens 0 (vllm_v1_adapter.py:1512:lmcache.integration.vllm)
(EngineCore_DP0 pid=7703) [2025-12-03 01:24:36,560] LMCache INFO: Reqid: cmpl-bench-97810623-16-0, Total tokens 10009, \
LMCache hit tokens: 256, need to load: -80, num_computed_tokens 336 (vllm_v1_adapter.py:1512:lmcache.integration.vllm)
"""
"""What the log of LMCache #2158 shows of lookups; it ends before the fatal ones."""
REPLAY = ("-m", "kvtrail", "replay")
STALE = "AssertionError: Mismatch in tokens to load: 256 vs 256 (tokens in lmcache) - 384 (tokens in vllm) - 0 (full"


def against(version: str, trace: Path, **config: Any) -> tuple[int, dict[str, Any]]:
    """The exit code and the report of a re-run against this LMCache's connector."""
    path = os.pathsep.join(map(str, real_lmcache.folders(version)))
    run = forks.run(
        [*REPLAY, trace, "--against", "LMCacheConnectorV1", "--json", "--config", json.dumps(config)],
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
        trace = tmp_path / f"{version}.jsonl"
        tracer = start_tracer("--trace-file", str(trace))
        real_lmcache.run(tmp_path, version, grpc_port=tracer.grpc_port, kvtrail={"level": "detailed"})
        until(lambda: _said_goodbye(trace))
        tracer.end()
        return trace

    return record


def _said_goodbye(trace: Path) -> bool:
    """Whether the export process has sent the last heartbeat of the engine, which was ended hard."""
    decoder = otlp_json.JsonDecoder()
    events = (decode.from_span(span) for line in trace.read_text().split("\n")[:-1] for span in decoder.spans(line))
    return any(isinstance(event, Heartbeat) and event.recorder_closed for event in events)


def died(report: dict[str, Any]) -> dict[str, Any]:
    """The last call that raised."""
    raised: list[dict[str, Any]] = [call for call in report["calls"] if "error" in call["answered"]]
    return raised[-1]


def test_0_3_10_reproduces_the_assertion_of_the_report(from_the_bare_scheduler: Path) -> None:
    code, report = against("0.3.10", from_the_bare_scheduler)
    assert code == 0
    assert report["outcomes"]["different"] == 0
    assert died(report)["answered"]["error"].startswith(STALE)
    assert died(report)["method"] == "update_state_after_alloc"
    stale = [call for call in report["calls"] if call["breaks"] == ["stale-lookup"]]
    assert {(call["outcome"], call["answered"]["returned"]) for call in stale} == {("same", 256)}
    assert len(stale) > 5


@pytest.mark.parametrize(("version", "config"), [("0.3.11", {}), ("0.5.6", {}), ("0.3.10", {"use_native": True})])
def test_later_ones_and_vllms_own_mend_it(from_the_bare_scheduler: Path, version: str, config: dict[str, Any]) -> None:
    """`use_native` is the adapter that vLLM 0.32 brings along; it needs an LMCache of its time beside it."""
    code, report = against(version, from_the_bare_scheduler, **config)
    assert code == 0
    first = report["calls"][report["first_divergence"]]
    assert (first["recorded"]["returned"], first["answered"]["returned"]) == (256, 0)
    assert (first["meaning"], first["recorded_breaks"], first["breaks"]) == ("fix", ["stale-lookup"], [])
    assert report["meanings"] == {"fix": report["outcomes"]["different"], "new fault": 0, "another answer": 0}
    assert not [call for call in report["calls"] if "error" in call["answered"]]


def test_a_real_engines_recording_is_given_again_call_for_call_and_mended_by_later_ones(
    engine: Callable[[str], Path],
) -> None:
    trace = engine("0.3.10")
    code, same = against("0.3.10", trace)
    assert (code, same["outcomes"]["different"], same["outcomes"]["not comparable"]) == (0, 0, 0)
    assert died(same)["answered"]["error"] == died(same)["recorded"]["error"], "to the letter"
    assert died(same)["answered"]["error"].startswith(STALE)
    for version in ("0.3.11", "0.5.6"):
        code, mended = against(version, trace)
        assert code == 0
        assert mended["meanings"]["fix"] == mended["outcomes"]["different"] > 5
        assert mended["calls"][mended["first_divergence"]]["answered"]["returned"] == 0


def test_an_older_version_is_told_as_a_new_fault(engine: Callable[[str], Path]) -> None:
    """The recording of 0.3.11, which shares vLLM's lists of blocks, is given again with that defect; 0.3.10 dies of it."""
    trace = engine("0.3.11")
    code, same = against("0.3.11", trace)
    assert (code, same["outcomes"]["different"], same["outcomes"]["not comparable"]) == (0, 0, 0)
    assert same["outcomes"]["same"] > 500
    assert [call for call in same["calls"] if call["breaks"] == ["plan-blocks"]]
    code, older = against("0.3.10", trace)
    assert code == 1
    first = older["calls"][older["first_divergence"]]
    assert (first["meaning"], first["breaks"], first["answered"]["returned"]) == ("new fault", ["stale-lookup"], 256)
    assert older["calls"][older["died_at"]]["answered"]["error"].startswith("AssertionError: Mismatch")


def test_a_log_shows_two_calls_and_the_report_says_what_it_lacks(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(LOG)
    for version in ("0.3.10", "0.3.11"):
        code, report = against(version, log)
        assert code == 0
        assert report["outcomes"] == {"same": 2, "different": 0, "not comparable": 0}
        assert [call["answered"]["returned"] for call in report["calls"]] == [0, 0]
        assert any("events of 1 request are missing: cmpl-bench-97810623-16-0" in note for note in report["notes"])
        assert any("the size of a KV block is not recorded" in note for note in report["notes"])
