"""`kvtrail minimize` as a person or a script calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import DRIFT, OK, run, write
from history import history
from wire import encoded, to_json_line

from kvtrail.tracer.history.audit import audit
from kvtrail.tracer.history.history import load


def test_a_drifting_trace_becomes_a_small_one_that_explains_itself(tmp_path: Path) -> None:
    trace, small = write(tmp_path / "t.jsonl", OK, DRIFT, a_line_each=True), tmp_path / "small.jsonl"
    result = run("minimize", str(trace), "-o", str(small))
    assert result.exit_code == 0, result.output
    assert "stale-lookup [could: crash]" in result.output
    assert "at most max(0, 256 - 336) = 0 can be new" in result.output
    assert f"{small}: 6 of 15 events, 1 of 2 requests" in result.output
    assert len(small.read_text().splitlines()) == 6
    assert run("audit", str(small)).exit_code == 1
    assert [f.explanation for f in audit([small]).findings] == [f.explanation for f in audit([trace]).findings]
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl", "small.jsonl"] or len(
        list(tmp_path.iterdir())
    ) == 2


def test_minimizing_again_changes_nothing(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", OK, DRIFT, a_line_each=True)
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    run("minimize", str(trace), "-o", str(one))
    run("minimize", str(one), "-o", str(two))
    assert load([one]) == load([two])


def test_the_standard_output_is_the_trace_alone(tmp_path: Path) -> None:
    result = run("minimize", str(write(tmp_path / "t.jsonl", DRIFT)), "-o", "-")
    assert result.exit_code == 0
    assert all(json.loads(line)["resourceSpans"] for line in result.stdout.splitlines())
    assert "standard output: 6 of 9 events" in result.stderr


def test_a_folder_is_no_file_to_write(tmp_path: Path) -> None:
    result = run("minimize", str(write(tmp_path / "t.jsonl", DRIFT)), "-o", str(tmp_path), "--force")
    assert result.exit_code == 2
    assert f"File '{tmp_path}' is a directory." in result.output


def test_a_sound_trace_has_nothing_to_keep(tmp_path: Path) -> None:
    result = run("minimize", str(write(tmp_path / "t.jsonl", OK)), "-o", str(tmp_path / "small.jsonl"))
    assert (result.exit_code, (tmp_path / "small.jsonl").exists()) == (1, False)
    assert "no drift was found, so there is nothing to minimize" in result.output


def test_findings_can_be_asked_for_and_those_that_are_left_out_are_named(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", DRIFT, "L 749 c0 h256 -> 256\nA 300\nend")
    ids = {f.rule: f.id for f in audit([trace]).findings}
    result = run("minimize", str(trace), "-o", "-", "--rule", "alloc-mismatch")
    assert "alloc-mismatch [could: crash]" in result.stderr
    assert (
        f"{ids['stale-lookup']}  stale-lookup [could: crash]  request r-0-0123abcd, after preemption 1" in result.stderr
    )
    by_id = run("minimize", str(trace), "-o", "-", "--finding", ids["alloc-mismatch"])
    assert by_id.stdout == result.stdout
    by_request = run("minimize", str(trace), "-o", "-", "--request", "r-1")
    assert by_request.stdout == result.stdout
    nothing = run("minimize", str(trace), "-o", "-", "--rule", "no-token-left")
    assert nothing.exit_code == 1
    assert "none of the 2 findings has rule no-token-left" in nothing.stderr
    assert all(each in nothing.stderr for each in ids.values())


def test_an_unknown_rule_is_reported_with_the_nearest(tmp_path: Path) -> None:
    result = run("minimize", str(write(tmp_path / "t.jsonl", DRIFT)), "-o", "-", "--rule", "stale")
    assert result.exit_code == 2
    assert "there is no rule 'stale'. Did you mean 'stale-handoff' or 'stale-lookup'" in result.output


def test_what_is_read_or_there_is_not_written_over(tmp_path: Path) -> None:
    trace, there = write(tmp_path / "t.jsonl", DRIFT), tmp_path / "there"
    there.write_text("precious")
    own = run("minimize", str(trace), "-o", str(trace), "--force")
    assert (own.exit_code, "is one of the files to read" in own.output) == (2, True)
    other = run("minimize", str(trace), "-o", str(there))
    assert (other.exit_code, "--force overwrites it" in other.output) == (2, True)
    assert there.read_text() == "precious"
    assert run("minimize", str(trace), "-o", str(there), "--force").exit_code == 0
    assert audit([there]).findings


def test_a_file_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path) -> None:
    missing = run("minimize", str(tmp_path / "none.jsonl"), "-o", "-")
    assert missing.exit_code == 2
    assert f"{tmp_path / 'none.jsonl'}: No such file or directory" in missing.output
    nowhere = tmp_path / "nowhere" / "small.jsonl"
    unwritable = run("minimize", str(write(tmp_path / "t.jsonl", DRIFT)), "-o", str(nowhere))
    assert unwritable.exit_code == 2
    assert f"{nowhere}: No such file or directory" in unwritable.output


def test_a_defect_of_ours_is_not_taken_for_the_absence_of_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtrail.tracer.history.minimize.minimize", lambda *_, **__: 1 / 0)
    result = run("minimize", str(write(tmp_path / "t.jsonl", DRIFT)), "-o", "-")
    assert (result.exit_code, "minimizing failed: ZeroDivisionError" in result.output) == (2, True)


def test_what_was_not_read_and_not_kept_is_reported(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    data = json.loads(to_json_line(encoded(history(DRIFT))))
    spans = data["resourceSpans"][0]["scopeSpans"]
    newer = {**spans[0]["spans"][0], "name": "kv.from.the.future", "spanId": "00000000000000aa"}
    spans[0]["spans"].append(newer)
    spans.append({"scope": {"name": "vllm"}, "spans": [{**newer, "name": "llm_request", "spanId": "00000000000000bb"}]})
    trace.write_text(f'{json.dumps(data)}\n{{"resourceSpans":[{{"reso')
    result = run("minimize", str(trace), "-o", "-")
    assert result.exit_code == 0
    assert "1 span of other services left out." in result.stderr
    assert "kv.from.the.future (1)" in result.stderr
    assert f"Not read: 1 line or span; the first: {trace}:2:" in result.stderr
