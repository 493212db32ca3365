"""Whole logs: what they become, what is said of them, and what remains unknown."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from history import history
from hypothesis import given, settings
from hypothesis import strategies as st
from wire import encoded, to_json_line

from kvtrail.__main__ import main
from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.events.events import Alloc, Event, Failure, Load, Lookup, RankLookup, Store
from kvtrail.tracer.history.audit import audit
from kvtrail.tracer.ingest import decode, otlp_json
from kvtrail.tracer.ingest.logs.event_spans import span_of
from kvtrail.tracer.ingest.logs.lines import Lines
from kvtrail.tracer.ingest.logs.reader import LogReader, is_log
from kvtrail.tracer.ingest.trace_file import TraceReader
from kvtrail.tracer.model.findings import Verdict

R = "cmpl-run-5a5a5a5a-3-0"
ENGINE = "(EngineCore_DP0 pid=501) "


def at(milliseconds: int, text: str, *, who: str = ENGINE) -> str:
    return f"{who}[2026-03-04 10:11:12,{milliseconds:03}] LMCache INFO: {text} (file.py:1:lmcache.v1)"


def looked_up(milliseconds: int, matched: int, need: int, computed: int, *, request: str = R) -> str:
    return at(
        milliseconds,
        f"Reqid: {request}, Total tokens 10009, LMCache hit tokens: {matched}, need to load: {need},"
        f" num_computed_tokens {computed}",
    )


def stored(milliseconds: int, count: int, start: int = 0, *, who: str = ENGINE, request: str = R) -> list[str]:
    return [
        at(
            milliseconds,
            f"Storing KV cache for {count} out of {start + count} tokens (skip_leading_tokens={start}) for request {request}",
            who=who,
        ),
        at(milliseconds + 1, f"Stored {count} out of total {count} tokens. size: 0.0273 gb, cost 3.1 ms", who=who),
    ]


INCIDENT = [  # the numbers of LMCache #2158
    "(EngineCore_DP0 pid=501) WARNING 03-04 10:11:10 [a.py:1] something else",
    looked_up(100, 0, 0, 0),
    *stored(200, 256),
    "......",
    looked_up(300, 256, -80, 336),
]
ASSERTION = (
    "AssertionError: Mismatch in tokens to load: 256 vs 256 (tokens in lmcache) - 336 (tokens in vllm) - 0 (full lmcache"
    " hits subtracts last token to recalculate logits)"
)


def write(folder: Path, lines: Iterable[str], name: str = "server.log") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def events(folder: Path, lines: Iterable[str]) -> list[Event]:
    return list(LogReader(write(folder, lines)).events())


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=text, catch_exceptions=False)


def exported(log: Path, trace: Path, *more: str) -> Result:
    """Writes what a log shows as a trace file."""
    return run("audit", "--export", str(trace), str(log), *more)


def test_a_log_becomes_numbered_events(tmp_path: Path) -> None:
    first, store, again = events(tmp_path, INCIDENT)
    assert isinstance(first, Lookup)
    assert isinstance(store, Store)
    assert isinstance(again, Lookup)
    assert (store.request, store.start, store.count) == (R, 0, 256)
    assert (again.total, again.computed, again.matched, again.returned) == (10009, 336, 256, 0)
    assert [e.request_sequence for e in (first, store, again)] == [1, 2, 3]
    assert [e.sequence for e in (first, store, again)] == [1, 2, 3]
    assert [e.role for e in (first, store, again)] == ["scheduler", "worker", "scheduler"]
    assert again.start_ns - first.start_ns == 200_000_000


def test_each_rank_s_line_is_one_event_of_its_own_and_the_same_line_twice_is_one(tmp_path: Path) -> None:
    backend = f"Lookup {R}: Backend LocalCPUBackend hit 2 chunks out of 97, 512 tokens"
    ranks = [at(5, backend, who=f"(Worker_TP{rank} pid={600 + rank}) ") for rank in range(4)]
    found = events(tmp_path, [line for line in ranks for _ in range(2)])
    assert [(type(e), e.rank, e.request_sequence) for e in found] == [(RankLookup, rank, 1) for rank in range(4)]
    assert len({e.recorder for e in found}) == 4


def test_stores_of_several_processes_are_paired_by_process(tmp_path: Path) -> None:
    one, two = (stored(5, count, who=f"(Worker_TP{rank} pid={rank}) ") for rank, count in enumerate((256, 254)))
    found = events(tmp_path, [one[0], two[0], two[1], one[1]])
    assert [(e.rank, e.count) for e in found if isinstance(e, Store)] == [(1, 254), (0, 256)]


def test_a_store_without_a_printed_place_is_no_event(tmp_path: Path) -> None:
    assert events(tmp_path, [at(5, f"[req_id={R}] Stored 254 out of total 256 tokens.")]) == []


def test_a_store_that_does_not_end_is_no_event_and_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    found = events(tmp_path, [storing(1, 256), *stored(10, 256, 256)])
    assert [(e.start, e.count) for e in found if isinstance(e, Store)] == [(256, 256)]
    assert len(found) == 1


def storing(milliseconds: int, count: int, start: int = 0, *, who: str = ENGINE, request: str = R) -> str:
    return stored(milliseconds, count, start, who=who, request=request)[0]


def test_overlapping_stores_are_distinguished_by_their_length_or_their_request(tmp_path: Path) -> None:
    """Layer by layer, the stores of a step begin together and end together."""
    one, two = stored(1, 256, request="cmpl-a"), stored(2, 512, request="cmpl-b")
    found = events(tmp_path, [one[0], two[0], two[1], one[1]])
    assert [(e.request, e.count) for e in found if isinstance(e, Store)] == [("cmpl-b", 512), ("cmpl-a", 256)]
    ended = at(5, "[req_id=cmpl-b] Stored 250 out of total 250 tokens.")
    found = events(tmp_path, [one[0], two[0], ended])
    assert [(e.request, e.count) for e in found if isinstance(e, Store)] == [("cmpl-b", 250)]


def test_a_short_load_and_the_complaint_about_it_are_one_event(tmp_path: Path) -> None:
    lines = [
        at(5, "Retrieved 0 out of 256 required tokens (from 5888 total tokens). size: 0.0000 gb"),
        at(5, f"Request {R}The number of retrieved tokens is less than the expected number of tokens! This should"),
        at(5, "Num retrieved tokens: 0, num expected tokens: 16"),
    ]
    (load,) = events(tmp_path, lines)
    assert isinstance(load, Load)
    assert (load.request, load.start, load.count, load.expected) == (R, 5632, 0, 16)
    assert load.error == "Num retrieved tokens: 0, num expected tokens: 16"
    (alone,) = events(tmp_path, [looked_up(1, 512, 496, 16), *lines[1:]][1:])
    assert isinstance(alone, Load)
    assert (alone.request, alone.start, alone.count, alone.expected) == (R, 0, 0, 16)


def test_a_complaint_alone_begins_where_the_lookup_had_computed(tmp_path: Path) -> None:
    lines = [
        looked_up(1, 512, 496, 16),
        at(5, f"Request {R}The number of retrieved tokens is less than the expected number of tokens! This should"),
        at(5, "Num retrieved tokens: 256, num expected tokens: 496"),
    ]
    load = events(tmp_path, lines)[-1]
    assert isinstance(load, Load)
    assert (load.start, load.count, load.expected) == (16, 256, 496)


def test_loads_that_are_not_short_are_events_even_at_the_end_of_the_log(tmp_path: Path) -> None:
    lines = [at(n, f"[req_id={R}] Retrieved 256 out of 256 required tokens (from 512 total tokens).") for n in (1, 2)]
    assert [(e.start, e.count, e.request) for e in events(tmp_path, lines) if isinstance(e, Load)] == [
        (256, 256, R)
    ] * 2


@pytest.mark.parametrize("named", [f" for request {R}", ""])
def test_the_assertion_is_one_allocation_however_often_it_is_printed(tmp_path: Path, named: str) -> None:
    other = looked_up(250, 512, 512, 0, request="cmpl-other")
    lines = [*INCIDENT, other, f"{ENGINE}ERROR 03-04 10:11:13 [core.py:7] {ASSERTION}{named}", ASSERTION + named]
    (alloc,) = [e for e in events(tmp_path, lines) if isinstance(e, Alloc)]
    assert (alloc.request, alloc.allocated, alloc.total) == (R, 256, 10009)
    assert alloc.error is not None
    assert alloc.error.startswith("Mismatch in tokens to load: 256 vs 256")


def test_an_assertion_that_fits_two_requests_belongs_to_none(tmp_path: Path) -> None:
    lines = [looked_up(1, 256, -80, 336), looked_up(2, 256, -80, 336, request="cmpl-other"), ASSERTION]
    assert events(tmp_path, lines)[-1].request is None


TRACEBACK = """\
Traceback (most recent call last):
  File "/opt/vllm/v1/engine/core.py", line 700, in run_engine_core
    engine_core.run_busy_loop()
  File "/opt/vllm/v1/core/sched/scheduler.py", line 900, in schedule
    self.connector.update_state_after_alloc(
    ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~^
  File "/opt/vllm/v1/simple_kv_offload/manager.py", line 451, in update_state_after_alloc
    assert num_external_tokens % self.hash_block_size == 0, (
AssertionError: num_external_tokens=300 is not aligned to hash_block_size=16"""


def failures(found: list[Event]) -> list[tuple[str, str | None, str, str | None]]:
    return [(e.call, e.error, e.role, e.request) for e in found if isinstance(e, Failure)]


@pytest.mark.parametrize("header", ["", f"{ENGINE}ERROR 03-04 10:11:13 [core.py:7] "])
def test_an_exception_of_a_connector_s_call_is_a_failure_however_often_it_is_printed(
    tmp_path: Path, header: str
) -> None:
    lines = [f"{header}{line}" for line in TRACEBACK.splitlines()]
    again = [f"(APIServer pid=9) ERROR 03-04 10:11:14 [core.py:7] {line}" for line in lines]
    found = events(tmp_path, [looked_up(1, 0, 0, 0), *lines, *again])
    assert failures(found) == [
        (
            "update_state_after_alloc",
            "AssertionError: num_external_tokens=300 is not aligned to hash_block_size=16",
            "scheduler",
            None,
        )
    ]


def test_the_call_that_raised_is_the_connector_s_and_its_request_the_one_that_it_names(tmp_path: Path) -> None:
    def raised(function: str, path: str, error: str) -> list[str]:
        return [
            "Traceback (most recent call last):",
            '  File "/opt/vllm/v1/worker/gpu_model_runner.py", line 1, in execute_model',
            "    self.step()",
            f'  File "{path}", line 2, in {function}',
            "    assert len(slot_mapping) == len(token_ids)",
            error,
        ]

    found = events(
        tmp_path,
        [
            *raised("wait_for_save", "/opt/lmcache/integration/vllm/vllm_v1_adapter.py", "AssertionError"),
            *raised("start_load_kv", "/srv/mine.py", f"my.StoreError: no blocks for request {R}, 3 wanted"),
            looked_up(1, 0, 0, 0),
            *raised("_plan", "/srv/my_connector/plans.py", f"KeyError: '{R}'"),
            *raised("_plan", "/srv/my_connector/plans.py", "KeyError: 'cmpl-0f1e2d3c'"),
            *raised("save_kv_layer", "/srv/mine.py", f"ValueError: no slot for {list(range(300, 340))}"),
            *raised("forward", "/opt/vllm/model.py", "RuntimeError: CUDA error"),
            *raised("tokenize", "/opt/vllm/api.py", f"ValueError: request {R} has no connector"),
        ],
    )
    assert failures(found) == [
        ("wait_for_save", "AssertionError: assert len(slot_mapping) == len(token_ids)", "worker", None),
        ("start_load_kv", f"StoreError: no blocks for request {R}, 3 wanted", "worker", R),
        ("_plan", f"KeyError: '{R}'", "scheduler", R),
        ("_plan", "KeyError: 'cmpl-0f1e2d3c'", "scheduler", None),
        ("save_kv_layer", "ValueError: no slot for [<40 numbers>]", "worker", None),
    ]


@pytest.mark.parametrize(("level", "deaths"), [("WARNING", 0), ("ERROR", 1)])
def test_an_exception_that_is_logged_as_a_warning_was_caught(tmp_path: Path, level: str, deaths: int) -> None:
    lines = [f"{ENGINE}{level} 03-04 10:11:13 [core.py:7] {line}" for line in TRACEBACK.splitlines()]
    path = write(tmp_path, [looked_up(1, 0, 0, 0), *lines, f"{ENGINE}INFO 03-04 10:11:14 [core.py:8] it goes on"])
    document = json.loads(run("audit", "--json", str(path)).output)
    assert (len(document["deaths"]), len(document["findings"])) == (deaths, deaths)


def test_a_traceback_without_a_call_of_a_connector_is_passed_over(tmp_path: Path) -> None:
    lines = [
        '  File "/opt/vllm/v1/core/sched/scheduler.py", line 893, in _update_from_kv_xfer_finished',
        "    self._free_blocks(self.requests[req_id])",
        f"KeyError: '{R}'",
        '  File "/opt/vllm/v1/core/sched/scheduler.py", line 893, in build_connector_meta',
        "    something",
        *["another message"] * 9,
        "ValueError: of somebody else",
        looked_up(1, 0, 0, 0),
    ]
    assert [type(e) for e in events(tmp_path, lines)] == [Lookup]


def test_a_load_that_the_connector_skips_is_short(tmp_path: Path) -> None:
    line = (
        f"{ENGINE}WARNING 03-04 10:11:13 [manager.py:1] SimpleCPUOffloadScheduler: update_state_after_alloc called for"
        f" req_id={R} with num_external_tokens=64 but no pending CPU hit from get_num_new_matched_tokens(); skipping load."
    )
    result = run("audit", str(write(tmp_path, [line])))
    assert result.exit_code == 1
    assert "incomplete-load" in result.output


def test_preemptions_that_are_printed_count_epochs(tmp_path: Path) -> None:
    line = f"WARNING 03-04 10:11:12 scheduler.py:1242] Sequence group {R} is preempted by PreemptionMode.RECOMPUTE mode"
    found = events(tmp_path, [looked_up(1, 0, 0, 0), line, looked_up(2, 0, 0, 0)])
    assert [e.epoch for e in found] == [0, 1, 1]


def test_no_request_of_a_log_is_ok_and_no_lookup_is_judged_by_what_was_derived_from_it(tmp_path: Path) -> None:
    printed, inferred = "cmpl-printed", "cmpl-inferred"
    lines = [
        looked_up(1, 512, 512, 0, request=printed),
        at(2, f"Reqid: {inferred}, Total tokens 900, LMCache hit tokens: 512, need to load: 512"),
    ]
    detector = Detector()
    detector.feed(events(tmp_path, lines))
    detector.settle()
    assert {detector.verdict(account) for account in detector.accounts.values()} == {Verdict.UNKNOWN}
    assert all(not account.complete for account in detector.accounts.values())
    judged = [detector.accounts["server.log", request].evidence.recent_lookups for request in (printed, inferred)]
    assert [len(lookups) for lookups in judged] == [1, 0]
    assert not detector.findings


def test_a_line_that_contradicts_itself_is_drift(tmp_path: Path) -> None:
    """The facts are all in one line, so nothing that is missing can excuse it."""
    result = run("audit", str(write(tmp_path, [looked_up(1, 256, 256, 336)])))
    assert result.exit_code == 1
    assert "between 0 and 0 can be new. The connector answered 256" in result.output


def test_an_imported_trace_is_judged_as_the_log_itself(tmp_path: Path) -> None:
    log, trace = (
        write(tmp_path, [*INCIDENT, ASSERTION, at(9, "Pin count of MemoryObj 7is negative: -1.")]),
        tmp_path / "t",
    )
    result = exported(log, trace)
    assert result.exit_code == 0, result.output
    assert f"{log}: 6 lines read, 2 unread; " in run("audit", str(log)).output
    direct, imported = audit([log]).as_dict(), audit([trace]).as_dict()
    assert imported == {**direct, "logs": []}
    assert audit([log, trace, log]).repeated == direct["events"] * 2
    spans = list(TraceReader(trace).spans())
    assert [decode.from_span(s) for s in spans] == [decode.from_span(s) for s in LogReader(log).spans()]


def test_several_logs_are_engines_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "d").mkdir()
    logs = [write(tmp_path / room, INCIDENT) for room in ("p", "d")]

    trace = tmp_path / "t.jsonl"
    assert run("audit", "--export", str(trace), *map(str, logs)).exit_code == 0
    engines = {e.engine for e in map(decode.from_span, TraceReader(trace).spans()) if e is not None}
    assert engines == {str(log) for log in logs}


def test_gzip_and_the_standard_input(tmp_path: Path) -> None:
    text = "\n".join(INCIDENT)
    packed = tmp_path / "server.log.1"
    packed.write_bytes(gzip.compress(text.encode()))
    assert "1 request: 0 with drift, 0 ok, 1 unknown; 3 events" in run("audit", str(packed)).output
    result = run("audit", "--export", "-", "-", text=text)
    lines = [line for line in result.stdout.splitlines() if line]
    assert [len(list(otlp_json.JsonDecoder().spans(line))) for line in lines] == [3]
    assert "3 events" in run("audit", "-", text=text).output


def test_a_gzip_that_is_cut_short_gives_what_is_left(tmp_path: Path) -> None:
    lines = [looked_up(n % 1000, 0, 0, 0, request=f"cmpl-{n * 7919}") for n in range(2000)]
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode())[:-100])
    result = run("audit", "--json", str(path))
    report = json.loads(result.output)
    assert report["events"] > 1000
    assert "damaged" in report["unreadable"][0]["reason"]


def test_a_trace_beside_a_log_is_judged_as_alone(tmp_path: Path) -> None:
    """Though its lines come in any order, and the log's events are given up on early."""
    trace = tmp_path / "trace.jsonl"
    parts = history("L 749 c0 h256 -> 256\nA 256\nS 256+48\nend")
    trace.write_text("\n".join(to_json_line(encoded([e])) for e in reversed(parts)))
    result = audit([write(tmp_path, INCIDENT), trace])
    assert (result.verdicts[Verdict.OK], result.verdicts[Verdict.UNKNOWN]) == (1, 1)


@pytest.mark.parametrize("content", [None, "", "\n\n", "hello\n", "INFO 03-04 10:11:12 [a.py:1] nothing of ours\n"])
def test_a_file_that_holds_nothing_of_ours_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "x.log"
    if content is not None:
        path.write_text(content)
    trace = tmp_path / "t.jsonl"
    for result in (exported(path, trace), run("audit", str(path))):
        assert result.exit_code == 2
        assert f"Error: {path}: " in result.output
    assert list(tmp_path.glob("*t.jsonl*")) == []


def test_a_log_without_events_leaves_no_empty_trace(tmp_path: Path) -> None:
    log = write(tmp_path, ["Stored 254 out of total 256 tokens."])
    result = exported(log, tmp_path / "t.jsonl")
    assert (result.exit_code, (tmp_path / "t.jsonl").exists()) == (2, False)
    assert run("audit", str(log)).exit_code == 3


def test_the_output_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    log, trace = write(tmp_path, INCIDENT), tmp_path / "t.jsonl"
    trace.write_text("precious")
    result = exported(log, trace)
    assert (result.exit_code, trace.read_text()) == (2, "precious")
    assert "--force" in result.output
    assert exported(log, trace, "--force").exit_code == 0
    before = log.read_text()
    assert exported(log, log, "--force").exit_code == 2
    assert log.read_text() == before
    assert exported(log, tmp_path / "no" / "t").exit_code == 2


def test_an_interrupted_import_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = write(tmp_path, INCIDENT)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvtrail.tracer.ingest.logs.assembler.Assembler.close", interrupted)
    result = exported(log, tmp_path / "t.jsonl")
    assert result.exit_code == 130
    assert list(tmp_path.iterdir()) == [log]


def test_a_log_is_distinguished_from_a_trace_by_its_content(tmp_path: Path) -> None:
    assert is_log(write(tmp_path, ["noise"] * 5000 + INCIDENT))
    assert not is_log(write(tmp_path, ['{"resourceSpans":[]}', *INCIDENT]))
    assert is_log(write(tmp_path, ['{"level": "info", "message": "nothing"}', json.dumps({"message": INCIDENT[1]})]))
    assert is_log(write(tmp_path, ["noise"])), "whoever reads it says what is missing"
    assert not is_log(write(tmp_path, ["", "\0\0noise"]))
    assert not is_log(tmp_path / "absent")


PIECES = [
    *INCIDENT, ASSERTION, f"{ASSERTION} for request {R}", "Num retrieved tokens: 0, num expected tokens: 9",
    at(1, "Retrieved 0 out of 256 required tokens (from 5888 total tokens)."), "\x1b[32;20m", "[32;20m", "\r", "\n", "\x00",
    storing(3, 256), *TRACEBACK.splitlines(), "KeyError: 'x'", "Reqid: x, Total tokens 1,000, kvpool hit tokens: None",
    "Releasing expired KV blocks for request", "which were retrieved by 0 remote worker(s) before lease", "(pid=", "pid=1) ",
    "PromptTokenStats(total=-1, cached_tokens=99999999999999999999)", "999999999999999", "-", "\ud800",
    "[HASH_GENERATION] prefix_hash=None, tokens_len=1, tokens_preview=(1), extra_keys=(), X result_hash=-9",
    "INFO 02-29 00:00:00 [a.py:1] ", "[0000-00-00 00:00:00,000] LMCache INFO: ", "[0001-01-01 00:00:00,000] LMCache INFO: ",
    "INFO 12-31 00:00:00 [a.py:1] ", "[9999-12-31 23:59:59,999] LMCache INFO: ", "Ref count of MemoryObj 1is negative: -1.",
]  # fmt: skip


@settings(max_examples=300)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(PIECES).map(lambda text: text.encode("utf-8", "surrogatepass")),
            st.binary(max_size=12),
            st.tuples(st.sampled_from(PIECES), st.integers(0, 200)).map(
                lambda cut: cut[0].encode("utf-8", "surrogatepass")[cut[1] :]
            ),
        ),
        max_size=12,
    ),
    st.sampled_from([b"\n", b"", b"\r\n"]),
)
def test_no_input_crashes_it_and_all_that_it_gives_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], glue: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "x.log"
    path.write_bytes(glue.join(pieces))
    trace = path.with_name("t.jsonl")
    result = exported(path, trace)
    assert result.exit_code in (0, 2), result.output
    assert run("audit", str(path)).exit_code in (0, 1, 2, 3)
    if result.exit_code == 0:
        read = TraceReader(trace)
        assert all(decode.from_span(span) is not None for span in read.spans())
        assert not read.bad_lines


@given(st.text(max_size=300))
def test_any_text_is_split_into_records(text: str) -> None:
    for record in Lines(file_ns=0).split(text, 1):
        assert record.at_ns >= 0


def test_an_event_of_no_request_has_no_number_within_one(tmp_path: Path) -> None:
    (event,) = events(tmp_path, [at(9, "Pin count of MemoryObj 7is negative: -1.")])
    assert {key for key in span_of(event).attributes if ".request." in key} == set()
