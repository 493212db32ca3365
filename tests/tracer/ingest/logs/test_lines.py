"""From bytes to records: colours, prefixes, glue, cuts."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest

from kvtrail.tracer.ingest.logs.lines import Lines, Record

FILE_NS = 1_770_000_000 * 10**9  # 2026-02-02
HEADER = "[2026-03-04 10:11:12,345] LMCache INFO: "
AT_NS = 1_772_619_072_345_000_000


def records(text: str | bytes, *, file_ns: int = FILE_NS) -> list[Record]:
    data = text.encode() if isinstance(text, str) else text
    return list(Lines(file_ns=file_ns).records(io.BytesIO(data)))


@pytest.mark.parametrize(
    ("prefix", "process", "rank"),
    [
        ("", "", 0),
        ("(EngineCore_DP0 pid=501) ", "pid=501", 0),
        ("(EngineCore pid=501) ", "pid=501", 0),
        ("(Worker_TP1 pid=502) ", "pid=502", 1),
        ("(VllmWorker rank=3 pid=503) ", "pid=503", 3),
        ("(VllmWorker TP5 pid=504) ", "pid=504", 5),
        ("(Worker_TP2_DCP0 pid=505) ", "pid=505", 2),
        ("Worker_TP2_DCP0 pid=505) ", "pid=505", 2),
        ("rker_TP4 pid=506) ", "pid=506", 4),
        ("(EngineCore_DP0 pid=501) (RayWorkerWrapper pid=77, ip=10.1.2.3) ", "pid=77, ip=10.1.2.3", 0),
        ("(RayWorkerWrapper pid=77, ip=10.1.2.3) ", "pid=77, ip=10.1.2.3", 0),
        ("dnWrapper pid=77, ip=10.1.2.3) ", "pid=77, ip=10.1.2.3", 0),
        ("févr. 04 10:11:12 node-7 vllm[501]: (EngineCore_DP0 pid=501) ", "pid=501", 0),
        ("3月 04 10:11:12 node-7 bash[9]: ", "", 0),
        ("Mar 04 10:11:12 node-7 bash[9]: (Worker_TP1 pid=502) ", "pid=502", 1),
        ("Processed prompts:  30%|███▌    | 3/10 [00:00<00:02,  3.00it/s, input: 3.1 toks/s](Worker_TP1 pid=502) ",
         "pid=502", 1),
        ("\x1b[36m(EngineCore_DP0 pid=501)\x1b[0;0m \x1b[32;20m", "pid=501", 0),
        ("(EngineCore_DP0 pid=501)[0;0m [32;20m", "pid=501", 0),
        ("#033[32;20m", "", 0),
        ("(EngineCore_DP0 pid=501)\ufffd[0;0m \ufffd[32;20m", "pid=501", 0),
        ("^[[32;20m", "", 0),
        ("\ufeff", "", 0),
    ],
)  # fmt: skip
def test_whoever_ran_the_server_put_something_before_the_line(prefix: str, process: str, rank: int) -> None:
    (record,) = records(f"{prefix}{HEADER}Stored\n")
    assert (record.text, record.process, record.rank, record.at_ns) == ("Stored", process, rank, AT_NS)
    assert record.logged
    assert record.precise


@pytest.mark.parametrize(
    "prefix",
    ["2026-03-04T10:11:12.345678901Z stdout F ", "2026-03-04 10:11:12,345 - INFO - ", "[2026-03-04 10:11:12.345] "],
)
def test_a_time_in_front_counts_where_there_is_no_header(prefix: str) -> None:
    dated, bare = records(f"{prefix}Reqid: 4\nReqid: 5\n")
    assert dated.at_ns // 10**6 == AT_NS // 10**6
    assert (dated.logged, bare.logged, bare.at_ns) == (True, False, dated.at_ns)


def test_torch_s_ranks_are_processes() -> None:
    (record,) = records("[rank3]: Traceback (most recent call last):\n")
    assert (record.process, record.rank, record.text) == ("rank3", 3, "Traceback (most recent call last):")


def test_colours_within_a_line_go_too() -> None:
    (record,) = records(f"[32;20m{HEADER[:-1]}[0m one [3m(file.py:1:m)[0m\n")
    assert record.text == "one (file.py:1:m)"


def test_records_glued_into_one_line_are_separated() -> None:
    found = records(
        f"(A pid=1) {HEADER}for r-1(Worker_TP1 pid=2) {HEADER}two DEBUG 03-04 10:11:13 [worker.py:7] three\n"
    )
    assert [(r.text, r.process, r.rank) for r in found] == [
        ("for r-1", "pid=1", 0),
        ("two", "pid=2", 1),
        ("three", "", 0),
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\n\n\n"])
def test_lines_may_end_in_any_way(end: str) -> None:
    assert [r.text for r in records(end.join([f"{HEADER}one", f"{HEADER}two", ""]))] == ["one", "two"]


def test_a_line_without_a_header_goes_on_where_the_last_one_stopped() -> None:
    first, second, third = records(f"(A pid=1) {HEADER}one\ntwo\n(Worker_TP1 pid=2) three\n")
    assert (second.text, second.process, second.at_ns, second.logged) == ("two", "pid=1", first.at_ns, False)
    assert (third.text, third.process, third.rank) == ("three", "pid=2", 1)


@pytest.mark.parametrize(
    ("before", "short", "year"),
    [
        ("[2025-12-31 23:59:59,000] LMCache INFO: x\n", "01-01 00:00:01", 2026),
        ("[2026-01-01 00:00:01,000] LMCache INFO: x\n", "12-31 23:59:59", 2025),
        ("", "01-30 10:00:00", 2026),
        ("", "11-30 10:00:00", 2025),
        ("", "02-29 10:00:00", 2026),
    ],
)
def test_the_year_that_vllm_does_not_print(before: str, short: str, year: int) -> None:
    record = records(f"{before}INFO {short} [scheduler.py:5] said\n")[-1]
    assert record.text == "said"
    assert datetime.fromtimestamp(record.at_ns / 1e9, UTC).year == year


@pytest.mark.parametrize(
    "header",
    [
        "INFO 03-04 10:11:12 [loggers.py:248] ",
        "DEBUG 03-04 10:11:12 [v1/core/sched/scheduler.py:663] ",
        "WARNING 03-04 10:11:12 scheduler.py:1242] ",
        "[Stage-2] ERROR 03-04 10:11:12 [async_llm.py:710] ",
    ],
)
def test_headers_of_vllm(header: str) -> None:
    (record,) = records(f"{header}said\n", file_ns=AT_NS + 10**9)
    assert (record.text, record.at_ns, record.precise) == ("said", AT_NS - 345_000_000, False)


def test_a_warning_with_its_request_on_the_next_line() -> None:
    head = "WARNING 03-04 10:11:12 [worker.py:9] Releasing expired KV blocks for request\n"
    assert [r.text for r in records(f"{head}     abc which\n")] == ["Releasing expired KV blocks for request abc which"]
    assert [r.text for r in records(f"{head}{HEADER}two\n")] == ["Releasing expired KV blocks for request", "two"]
    assert len(records(head)) == 1


def test_bytes_that_are_no_text_and_lines_without_an_end() -> None:
    (record,) = records(b"\xff\xfe " + HEADER.encode() + b"on\xe9")
    assert record.text == "on\ufffd"
    assert sum(len(r.text) for r in records(b"x" * (3 << 20))) == 3 << 20


def test_a_date_that_is_none_takes_the_time_before_it() -> None:
    first, second = records(f"{HEADER}one\n{HEADER.replace('03-04', '13-45')}two\n")
    assert second.at_ns == first.at_ns
