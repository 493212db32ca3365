"""The commands as a person or a script calls them: words, exit codes, help."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from command_line import DRIFT, OK, run, write
from history import history
from processes import SLOW_S
from wire import encoded, to_json_line

from kvtrail.__main__ import COMMANDS, GROUPS
from kvtrail.tracer.rules import pages

ROOT = Path(__file__).parents[3]


def test_audit_of_a_sound_trace(tmp_path: Path) -> None:
    result = run("audit", str(write(tmp_path / "t.jsonl", OK)))
    assert result.exit_code == 0
    assert "1 request: 0 with drift, 1 ok, 0 unknown" in result.output


def test_audit_of_a_drifting_trace_in_any_order_of_lines(tmp_path: Path) -> None:
    result = run("audit", str(write(tmp_path / "t.jsonl", OK, DRIFT, a_line_each=True)))
    assert result.exit_code == 1
    assert result.output.count("stale-lookup [could: crash]") == 1
    assert (
        "request r-1-0123abcd, after preemption 1, Connector; once; did: no harm seen (it ended: stopped)"
        in result.output
    )
    assert "at most max(0, 256 - 336) = 0 can be new" in result.output
    assert "2 requests: 1 with drift, 1 ok, 0 unknown" in result.output


def test_audit_of_a_fatal_trace_begins_with_what_died_and_why(tmp_path: Path) -> None:
    fatal = DRIFT.replace("A 256\nend", "b: L 64 c0 h0 -> 0\nA 256 !AssertionError: Mismatch in tokens to load")
    path = str(write(tmp_path / "t.jsonl", fatal))
    result = run("audit", path)
    assert result.exit_code == 1
    assert result.output.splitlines()[:4] == [
        "Engine engine died at 2025-12-03 01:24:36.009 UTC of AssertionError: Mismatch in tokens to load",
        "  Lost: 2 requests: b-r-0-0123abcd, r-0-0123abcd",
        "  Why: A cached lookup answer was handed out without regard to the computed tokens"
        " (stale-lookup of request r-0-0123abcd)",
        "",
    ]
    assert "; once; did: engine died\n" in result.output
    report = json.loads(run("audit", "--json", path).output)
    (death,), (finding,) = report["deaths"], report["findings"]
    assert (death["engine"], len(death["lost"])) == ("engine", 2)
    assert death["cause"] == {name: finding[name] for name in ("id", "rule", "title", "request")}
    assert finding["did"] == "engine died"


def test_a_death_that_nothing_found_explains_is_inconclusive(tmp_path: Path) -> None:
    fatal = OK.removesuffix("end") + "failure build_connector_meta !KeyError: 'x'"
    result = run("audit", "--rule", "no-token-left", str(write(tmp_path / "t.jsonl", fatal)))
    assert result.exit_code == 3
    assert result.output.startswith("Engine engine died at ")
    assert "- engine died, and no finding explains it: look at the end of its log." in result.output


def test_audit_as_json(tmp_path: Path) -> None:
    result = run("audit", "--json", str(write(tmp_path / "t.jsonl", OK, DRIFT)))
    assert result.exit_code == 1
    report = json.loads(result.output)
    assert [f["rule"] for f in report["findings"]] == ["stale-lookup"]
    assert report["requests"] == {"ok": 1, "drift": 1, "unknown": 0}


def test_audit_by_some_rules_only(tmp_path: Path) -> None:
    path = str(write(tmp_path / "t.jsonl", DRIFT, "L 749 c0 h256 -> 256\nA 300\nend"))
    both = run("audit", "--rule", "stale-lookup", "--rule", "alloc-mismatch", path)
    assert (both.exit_code, both.output.count("[could: crash]")) == (1, 2)
    one = run("audit", "--rule", "alloc-mismatch", path)
    assert one.exit_code == 1
    assert "stale-lookup" not in one.output
    assert "2 requests: 1 with drift" in one.output
    none = run("audit", "--rule", "no-token-left", path)
    assert none.exit_code == 0
    assert "0 with drift" in none.output
    report = json.loads(run("audit", "--json", "--rule", "alloc-mismatch", path).output)
    assert {f["rule"] for f in report["findings"]} | {c["rule"] for c in report["checks"]} == {"alloc-mismatch"}


@pytest.mark.parametrize(
    ("text", "goodbye", "reason"),
    [
        ("start 749\nend", True, "No lookup was recorded"),
        ("L 749 c0 h0 -> 0\nS 0+48\nend", True, "The only lookup did not hit"),
        (OK, False, "No end record came from engine: it was killed, or it hangs"),
        (OK.removesuffix("\nend"), True, "Requests that had not ended: r-0-0123abcd."),
        (
            OK.removesuffix("\nend"),
            True,
            "No request could be judged: 1 because the request has not ended.",
        ),
    ],
)
def test_audit_of_what_proves_nothing_is_inconclusive(tmp_path: Path, text: str, goodbye: bool, reason: str) -> None:
    path = str(write(tmp_path / "t.jsonl", text, goodbye=goodbye))
    result = run("audit", path)
    assert result.exit_code == 3, result.output
    before, _, reasons = result.output.partition("Nothing found, but this is inconclusive:\n")
    assert before
    assert f"- {reason}" in reasons
    report = run("audit", "--json", path)
    assert report.exit_code == 3
    assert any(each.startswith(reason) for each in json.loads(report.output)["inconclusive"])


def test_audit_of_a_part_is_inconclusive(tmp_path: Path) -> None:
    """Events from the middle, or the beginning, are missing."""
    lines = write(tmp_path / "t.jsonl", OK, a_line_each=True).read_text().splitlines()
    lines.sort(
        key=lambda line: int(re.findall(r'"kvtrail.recorder.sequence", *"value": *\{"intValue": *"(\d+)"', line)[0])
    )
    part = tmp_path / "part.jsonl"
    for missing, reason in ((2, "Missing events: 1."), (0, "The first events of engine are missing:")):
        part.write_text("\n".join(lines[:missing] + lines[missing + 1 :]))
        result = run("audit", str(part))
        assert result.exit_code == 3
        assert f"- {reason}" in result.output


def test_audit_of_foreign_spans_alone_is_inconclusive(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", OK)
    path.write_text(path.read_text().replace("kvtrail", "other").replace("kv.", "other."))
    result = run("audit", str(path))
    assert result.exit_code == 3, result.output
    assert "It holds no kvtrail spans (7 foreign spans): serve the connector as Traced<X>" in result.output


def test_a_rule_that_was_asked_for_and_judged_nothing_is_inconclusive(tmp_path: Path) -> None:
    result = run("audit", "--rule", "stuck-load", str(write(tmp_path / "t.jsonl", OK)))
    assert result.exit_code == 3
    assert "- Asked for, and never decided: stuck-load." in result.output


def test_drift_beats_inconclusive(tmp_path: Path) -> None:
    result = run("audit", "--json", str(write(tmp_path / "t.jsonl", DRIFT, goodbye=False)))
    assert (result.exit_code, len(json.loads(result.output)["inconclusive"])) == (1, 1)
    assert "inconclusive" not in run("audit", str(tmp_path / "t.jsonl")).output


@pytest.mark.parametrize("rule", pages.files())
def test_explain_says_what_the_documentation_says(rule: str) -> None:
    result = run("audit", "--explain", rule)
    assert (result.exit_code, result.output) == (0, pages.page(rule).section(rule))


def test_a_rule_is_known_by_its_old_name(tmp_path: Path) -> None:
    assert run("audit", "--explain", "byte-rot").output == run("audit", "--explain", "byte-drift").output
    assert run("audit", "--rule", "short-load", str(write(tmp_path / "t.jsonl", OK))).exit_code != 2


@pytest.mark.parametrize("option", ["--explain", "--rule"])
def test_an_unknown_rule_is_reported_with_the_nearest_ones(option: str, tmp_path: Path) -> None:
    result = run("audit", option, "stale", str(write(tmp_path / "t.jsonl", DRIFT)))
    assert result.exit_code == 2
    assert f"'{option}': there is no rule 'stale'" in result.output
    assert "stale-lookup" in result.output
    assert sum(rule in result.output for rule in pages.files()) <= 3, "not all of them"


def test_audit_needs_a_file() -> None:
    result = run("audit")
    assert result.exit_code == 2
    assert "name the files to judge, or a store with --store" in result.output


def test_options_of_audit_can_be_set_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRAIL_AUDIT_JSON", "1")
    monkeypatch.setenv("KVTRAIL_AUDIT_RULE", "no-token-left alloc-mismatch")
    result = run("audit", str(write(tmp_path / "t.jsonl", DRIFT)))
    assert (result.exit_code, json.loads(result.output)["findings"]) == (0, [])


def test_a_report_that_cannot_be_written_is_no_drift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrail.tracer.reports.findings.as_text", lambda *_, **__: 1 / 0)
    result = run("audit", str(write(tmp_path / "t.jsonl", DRIFT)))
    assert result.exit_code == 2
    assert "the audit failed: ZeroDivisionError" in result.output


def test_several_files_and_gzip_are_one_history(tmp_path: Path) -> None:
    events = history(DRIFT)
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    first.write_text(to_json_line(encoded(events[4:])))
    second.write_bytes(gzip.compress(to_json_line(encoded(events[:4])).encode()))
    result = run("audit", "--json", str(first), str(second), str(first))
    report = json.loads(result.output)
    assert (report["missing"], report["repeated"], report["drift"]) == (0, len(events) - 4, True)


@pytest.mark.parametrize(
    "damage", [b"[" * 100_000, b'{"resourceSpans":' + b"[" * 900 + b"]" * 900 + b"}", b'{"half": "\xc3', b"null", b"7"]
)
def test_a_damaged_line_is_reported_and_not_fatal(tmp_path: Path, damage: bytes) -> None:
    path = write(tmp_path / "t.jsonl", OK)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + damage)
    result = run("audit", str(path))
    assert result.exit_code == 3, result.output
    assert "1 lines or spans could not be read" in result.output
    assert "- Unreadable lines or spans: 1." in result.output


def test_a_truncated_last_line_is_reported_and_not_fatal(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", OK)
    path.write_text(path.read_text() + '{"resourceSpans":[{"reso')
    result = run("audit", str(path))
    assert result.exit_code == 3
    assert f"1 lines or spans could not be read; the first: {path}:2:" in result.output


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        (b"", "the file is empty"),
        (b"hello\n", "none of its 1 lines can be read."),
        (b'{"a": 1}\n', "none of its 1 lines can be read"),
        (b"\xff\xfe\x00\n", "'utf-8' codec can't decode"),
        (gzip.compress(b"x" * 1000, mtime=0)[:-20] + b"y" * 12, "the file is damaged"),
    ],
)
def test_an_unusable_file_is_named_with_the_reason(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "t.jsonl"
    if content is not None:
        path.write_bytes(content)
    result = run("audit", str(path))
    assert result.exit_code == 2
    assert str(path) in result.output
    assert said in result.output


@pytest.mark.parametrize("command", ["audit", "audit --export trace.jsonl", "replay", "minimize -o small.jsonl"])
def test_ctrl_c_is_no_verdict(tmp_path: Path, command: str) -> None:
    """While it reads from a named pipe that does not end."""
    endless = tmp_path / "endless.jsonl"
    os.mkfifo(endless)
    process = subprocess.Popen(
        [sys.executable, "-m", "kvtrail", *command.split(), str(endless)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path,
    )  # fmt: skip
    with endless.open("w"):  # it has opened the other end
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=SLOW_S)
    assert (process.returncode, output) == (130, "\n")
    assert [path.name for path in tmp_path.iterdir()] == ["endless.jsonl"]


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help_with_an_example_and_is_documented(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    examples = re.findall(r"^  Example: (.*\n.*)", result.output, flags=re.MULTILINE)
    assert any(example.startswith(f"kvtrail {command}") for example in examples)
    assert all(example.endswith("\n") for example in examples), "each is one line, to be copied"
    assert f"kvtrail {command}" in (ROOT / "docs" / "commands.md").read_text()


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_option_is_documented(command: str) -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    for option in re.findall(r"^\s+(--[a-z-]+)", run(command, "--help").output, flags=re.MULTILINE):
        assert f"`{option}`" in page or option == "--help", f"{option} of {command} is not in docs/commands.md"


def test_an_unknown_command_is_reported_with_the_nearest() -> None:
    result = run("adit")
    assert result.exit_code == 2
    assert "There is no command 'adit'. Did you mean 'audit'?" in result.output


def test_the_list_of_commands_is_grouped_and_loads_none_of_them() -> None:
    result = run("--help")
    assert result.exit_code == 0
    headings = re.findall(r"^(\S.*):$", result.output, flags=re.MULTILINE)
    assert headings == ["Options", *GROUPS]
    assert re.findall(r"^  ([a-z]+)  ", result.output, flags=re.MULTILINE) == list(COMMANDS)


def test_help_names_the_variable_that_remembers_the_tracer() -> None:
    assert "[env var: KVTRAIL_DASHBOARD_TRACER; default:" in " ".join(run("dashboard", "--help").output.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_dependency_says_what_to_install(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setitem(COMMANDS, command, ("no_such_module_here:it", ""))
    result = run(command)
    assert result.exit_code == 2
    extras = {"dashboard": "dashboard", "demo": "tracer,dashboard"}.get(command, "tracer")
    assert f"`kvtrail {command}` needs no_such_module_here: pip install 'kvtrail[{extras}]'" in result.output


@pytest.mark.parametrize(("module", "says"), [("torch", "install kvtrail where vLLM is"), ("zstandard", "[tracer]")])
def test_what_a_command_lacks_only_later_is_said_as_well(
    monkeypatch: pytest.MonkeyPatch, module: str, says: str
) -> None:
    @click.command()
    def serve() -> None:
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)

    monkeypatch.setattr("kvtrail.tracer.commands.serve.serve", serve)
    result = run("serve")
    assert result.exit_code == 2
    assert says in result.output


def test_a_device_that_never_ends_is_refused() -> None:
    result = run("audit", "/dev/zero")
    assert (result.exit_code, "a device, which may never end" in result.output) == (2, True)
