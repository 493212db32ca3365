"""An engine's death is what vLLM itself says of it; an exception that somebody catches is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvtrail.__main__ import main
from kvtrail.tracer.events.events import Failure, Heartbeat, Store
from kvtrail.tracer.ingest.logs.reader import LogReader

R = "cmpl-run-5a5a5a5a-3-0"
CORE = "(EngineCore_DP0 pid=501) "
API = "(APIServer pid=500) "
ERROR = "ERROR 03-04 10:11:13 [core.py:710] "
LOOKUP = (
    f"{CORE}[2026-03-04 10:11:12,345] LMCache INFO: Reqid: {R}, Total tokens 900, LMCache hit tokens: 0, need to load: 0,"
    " num_computed_tokens 0 (x.py:1)"
)
LATER = LOOKUP.replace("10:11:12", "10:11:14")
RAISES = [
    "Traceback (most recent call last):",
    '  File "/opt/lmcache/integration/vllm/vllm_v1_adapter.py", line 2, in start_load_kv',
    "    raise RuntimeError(why)",
    "RuntimeError: no room",
]
"""Caught by the process in which it was raised, or by nobody: its frames do not say."""
UNCAUGHT = [RAISES[0], '  File "/opt/vllm/v1/engine/core.py", line 701, in run_engine_core', "    loop()", *RAISES[1:]]


def audited(path: Path, lines: list[str]) -> dict[str, Any]:
    path.write_text("\n".join(lines) + "\n")
    document: dict[str, Any] = json.loads(CliRunner().invoke(main, ["audit", "--json", str(path)]).output)
    return document


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


SAYS = [
    f"{CORE}{ERROR}EngineCore encountered a fatal error.",
    f"{CORE}{ERROR}EngineCore hit an exception: Traceback (most recent call last):",
    f"{CORE}{ERROR}EngineCore failed to start.",
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the cause.",
    f"{API}{ERROR}EngineDeadError: EngineCore encountered an issue.",
    f"{API}{ERROR}Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.",
    f"{CORE}{ERROR}Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.",
    f"{CORE}{ERROR}RayWorkerProc rank=1 died unexpectedly, shutting down executor.",
    "Process EngineCore_DP0:",
    f"{API}INFO 03-04 10:11:13 [async_llm.py:1] Request {R} failed (engine dead).",
    "ERROR 03-04 10:11:13 [async_llm.py:1] Engine background task failed",
    "vllm.engine.async_llm_engine.AsyncEngineDeadError: Background loop has errored already.",
]


@pytest.mark.parametrize("said", SAYS)
def test_an_engine_has_died_where_vllm_says_so(log: Path, said: str) -> None:
    (death,) = audited(log, [LOOKUP, said])["deaths"]
    assert death["engine"] == "server.log"
    assert death["ended_by"] in said


@pytest.mark.parametrize("said", SAYS)
def test_it_died_of_what_was_raised_before_or_after(log: Path, said: str) -> None:
    for lines in (
        [LOOKUP, *RAISES, said],
        [LOOKUP, said, *RAISES],
        [LOOKUP, *UNCAUGHT, said],
        [LOOKUP, said, *UNCAUGHT],
    ):
        (death,) = audited(log, lines)["deaths"]
        assert (death["ended_by"], death["cause"]["rule"]) == ("RuntimeError: no room", "failed-call")


def test_the_death_of_an_engine_that_no_connector_caused_has_its_exception(log: Path) -> None:
    lines = [*UNCAUGHT[:3], '  File "/opt/vllm/model.py", line 7, in forward', "    go()", "RuntimeError: CUDA error"]
    (death,) = audited(log, [LOOKUP, SAYS[0], *(CORE + ERROR + line for line in lines)])["deaths"]
    assert (death["ended_by"], death["cause"], death["lost"]) == ("RuntimeError: CUDA error", None, [R])


def test_a_death_is_told_once_and_another_engine_in_its_place_dies_again(log: Path) -> None:
    log.write_text("\n".join([LOOKUP, *RAISES, *SAYS, LATER, *SAYS]) + "\n")
    ends = [each for each in LogReader(log).events() if isinstance(each, Heartbeat)]
    assert [(each.recorder_closed, each.recorder_ended_by) for each in ends] == [(True, "RuntimeError: no room")]
    again = [line.replace("03-04 10:", "03-04 12:") for line in (LATER, *SAYS)]
    assert len(audited(log, [LOOKUP, *RAISES, *SAYS, *again])["deaths"]) == 2


GOES_ON = {
    "LMCache's server": [
        "[2026-03-27 10:25:39,302] LMCache ERROR: Error in blocking handler (mq.py:433:lmcache.v1.multiprocess.mq)",
        RAISES[0],
        '  File "/workspace/lmcache/v1/multiprocess/server.py", line 281, in store',
        "    assert instance_id in self.gpu_contexts, (",
        "AssertionError: KV cache not registered for GPU ID 2514",
        "[2026-03-27 10:25:59,302] LMCache INFO: Stored 1600 tokens in 0.002 seconds (gpu_transfer.py:790:x)",
    ],
    "a worker": [
        f"(Worker_TP0 pid=865) ERROR 03-04 10:11:13 [multiproc_executor.py:863] {line}"
        for line in ("WorkerProc hit an exception.", RAISES[0],
                     '  File "/opt/vllm/v1/executor/multiproc_executor.py", line 1, in worker_busy_loop', "    f()",
                     *RAISES[1:])
    ],
    "a scheduler's call that logs what it catches": [f"{CORE}{ERROR}{line}" for line in (
        RAISES[0], '  File "/opt/lmcache/x.py", line 1, in get_num_new_matched_tokens', "    f()", "ValueError: no")],
    "an assertion alone": [f"{CORE}{ERROR}AssertionError: Mismatch in tokens to load: 256 vs 256 (tokens in lmcache) - 336"
                           " (tokens in vllm)"],
    "a user's words": [f"{API}INFO 03-04 10:11:13 [x.py:1] prompt: 'why does EngineCore encountered a fatal error, and"
                       " EngineDeadError: mean?'"],
}  # fmt: skip


@pytest.mark.parametrize("who", GOES_ON)
def test_an_exception_that_is_caught_is_no_death(log: Path, who: str) -> None:
    document = audited(log, [LOOKUP, *GOES_ON[who]])
    assert document["deaths"] == []
    assert {finding["did"] for finding in document["findings"]} <= {"no harm seen"}
    assert len(document["findings"]) == (who != "a user's words")


def test_a_trace_made_of_the_log_of_a_death_is_judged_as_the_log(log: Path, tmp_path: Path) -> None:
    for lines in ([LOOKUP, *RAISES, SAYS[0]], [LOOKUP, *RAISES]):
        document = audited(log, lines)
        trace = tmp_path / "trace.jsonl"
        arguments = ["audit", "--export", str(trace), str(log), "--force"]
        assert CliRunner().invoke(main, arguments, catch_exceptions=False).exit_code == 0
        again = json.loads(CliRunner().invoke(main, ["audit", "--json", str(trace)]).output)
        assert again["deaths"] == document["deaths"]
        assert again["findings"] == document["findings"]


def test_the_key_of_a_key_error_is_a_request_only_if_another_line_names_it(log: Path) -> None:
    engine, request = "c92321f8-5be9-4722-9cc1-648335f9c072", "cmpl-0f1e2d3c"
    known = f"{CORE}INFO 03-04 10:11:12 [x.py:1] Finished sending KV transfer for request {request}"
    for key, named in ((engine, None), (request, request)):
        for function in ("done_callback", "_update_from_kv_xfer_finished"):
            path = "/opt/vllm/distributed/kv_transfer/x.py" if function == "done_callback" else "/opt/vllm/v1/core/s.py"
            lines = [
                known,
                RAISES[0],
                f'  File "{path}", line 1, in {function}',
                "    self.of[it]",
                f"KeyError: '{key}'",
            ]
            log.write_text("\n".join(lines))
            assert [e.request for e in LogReader(log).events() if isinstance(e, Failure)] in ([named], [])


def test_a_store_that_lmcache_gives_up_is_not_taken_for_the_one_that_ends(log: Path) -> None:
    def storing(request: str) -> str:
        return (
            f"[2026-03-04 10:11:12,345] LMCache INFO: Storing KV cache for 256 out of 256 tokens for request {request}"
        )

    full = "[2026-03-04 10:11:12,346] LMCache WARNING: Failed to allocate memory for the KV cache."
    given_up, ended = "The KV cache will not be stored. (x.py:1)", "Stored 256 out of total 256 tokens."
    log.write_text("\n".join([storing("cmpl-a"), full, given_up, storing("cmpl-b"), ended]))
    assert [each.request for each in LogReader(log).events() if isinstance(each, Store)] == ["cmpl-b"]
