"""What people read of an audit: groups, moments, colours, the width of a line."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from click import unstyle
from command_line import DRIFT, OK, write
from history import START_NS, history, judge
from processes import SLOW_S

from kvtrail.tracer.history.audit import Audit
from kvtrail.tracer.model.findings import Finding, Severity, Witness
from kvtrail.tracer.reports.findings import COLORS, MAX_REQUESTS, as_text, rule_page
from kvtrail.tracer.reports.terminal import plain
from kvtrail.tracer.rules import pages
from kvtrail.tracer.rules.pages import Page

DAY_NS = 86_400 * 10**9


def finding(rule: str = "some-rule", request: str = "r-1", **changes: object) -> Finding:
    fields: dict[str, Any] = {
        "title": "Something contradicts itself",
        "severity": Severity.CRASH,
        "engine": "engine",
        "external": "r",
        "trace_id": "",
        "connector": "Connector",
        "epoch": 0,
        "first_ns": START_NS,
        "last_ns": START_NS,
        "count": 1,
        "healed": 0,
        "numbers": {},
        "explanation": "One is not two.",
        "hint": "Count again.",
    }
    return Finding(rule=rule, request=request, **(fields | changes))


def text(*findings: Finding, columns: int | None = None, everything: bool = False) -> str:
    return unstyle(as_text(Audit(findings=list(findings)), columns=columns, everything=everything))


def audited(*arguments: str, **environment: str) -> str:
    """What `kvtrail audit` writes to a terminal of 72 columns."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 72, 0, 0))
    clean = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
    command = [sys.executable, "-m", "kvtrail", "audit", *arguments]
    child = subprocess.Popen(command, stdout=its, env=clean | environment)
    os.close(its)
    output = b""
    try:
        while chunk := os.read(ours, 65536):
            output += chunk
    except OSError:  # how Linux says that the other side of a terminal is closed
        pass
    os.close(ours)
    child.wait(timeout=SLOW_S)
    return output.decode().replace("\r\n", "\n")


def test_the_whole_of_a_finding() -> None:
    detector = judge(history(DRIFT))
    (found,) = [f for held in detector.findings.values() for f in held.values()]
    explanation = found.explanation.replace("epoch 0", "before any preemption").replace(
        "epoch 1", "after it was preempted once"
    )
    assert "epoch" not in explanation != found.explanation
    assert text(found) == "\n".join(
        [
            f"stale-lookup [could: crash] {found.title}",
            "  In 1 request.",
            f"  Usually: {found.hint}",
            "",
            "  request cmpl-1-0-0123abcd, after preemption 1, Connector; once",
            f"    {explanation}",
            "    2025-12-03 (UTC)",
            "    01:24:36.001  L1  lookup  0 of 749 computed, 256 matched; answered 256; first run",
            "    01:24:36.005  L2  lookup  336 of 749 computed, 256 matched; answered 256, cached",
            "",
            "0 requests: 0 with drift, 0 ok, 0 unknown; 0 events, 0 foreign spans, 0 events missing.",
        ]
    )


def test_what_a_rule_says_is_said_once_and_its_requests_stand_together() -> None:
    printed = text(
        finding("a", "r-1"),
        finding("a", "r-2", count=3, healed=1),
        finding("a", "r-1", epoch=1, count=2, healed=2),
        finding("b", "r-1", severity=Severity.LEAK),
    )
    lines = [line for line in printed.splitlines() if line.startswith(("a ", "b ", "  request", "  In", "  Usually"))]
    assert lines == [
        "a [could: crash] Something contradicts itself",
        "  In 2 requests.",
        "  Usually: Count again.",
        "  request r-1, first run, Connector; once",
        "  request r-1, after preemption 1, Connector; twice, healed by the guard",
        "  request r-2, first run, Connector; 3 times, healed by the guard once",
        "b [could: leak] Something contradicts itself",
        "  In 1 request.",
        "  Usually: Count again.",
        "  request r-1, first run, Connector; once",
    ]


def test_equal_names_in_two_engines_are_two_requests() -> None:
    printed = text(finding(engine="one"), finding(engine="two"))
    assert "In 2 requests." in printed
    assert "Connector, engine one; once" in printed
    assert "engine" not in text(finding())


def test_what_concerns_no_request_is_said_of_its_engine() -> None:
    printed = text(finding(request=""))
    assert "  In 1 engine." in printed
    assert "  Connector, engine engine; once" in printed


def test_of_many_requests_the_first_ten_are_shown() -> None:
    many = [finding(request=f"r-{n}", epoch=e) for n in range(MAX_REQUESTS + 2) for e in range(2)]
    printed = text(*many)
    assert printed.count("  request r-") == 2 * MAX_REQUESTS
    assert f"request r-{MAX_REQUESTS}," not in printed
    assert "and 2 more requests; --all shows all of them" in printed
    assert "1 more request;" in text(*many[:-2])
    assert "more request" not in text(*many[:-4])
    everything = text(*many, everything=True)
    assert everything.count("  request r-") == len(many)
    assert "more request" not in everything


def test_moments_stand_in_columns_under_their_day() -> None:
    def at(label: str, kind: str, ns: int, **numbers: object) -> Witness:
        return Witness(label, kind, "", START_NS + ns, 0, numbers)

    witness = [
        at("L1", "kv.load.plan", 0, start=0, count=256, blocks_ids=tuple(range(3, 19))),
        at("A10", "kv.sent", 10**9),
        at("P1", "kv.key", DAY_NS, chunk_key="ab"),
    ]
    assert text(finding(witness=witness)).splitlines()[6:11] == [
        "    2025-12-03 (UTC)",
        "    01:24:36.000  L1   plan to load  256 tokens (0 to 256) to be loaded; blocks 3-18",
        "    01:24:37.000  A10  store done    asynchronous store finished",
        "    2025-12-04 (UTC)",
        "    01:24:36.000  P1   key           chunk key ab",
    ]


@pytest.mark.parametrize("columns", [40, 60, 100])
def test_lines_are_wrapped_to_the_width(columns: int) -> None:
    detector = judge(history(DRIFT))
    found = [f for held in detector.findings.values() for f in held.values()]
    lines = text(*found, columns=columns).splitlines()
    assert max(map(len, lines)) <= columns
    assert "".join("".join(lines).split()) == "".join(text(*found).split())


def test_ids_stay_whole() -> None:
    assert "r-" + "0" * 80 in text(finding(request="r-" + "0" * 80), columns=40)


def test_a_trace_file_cannot_steer_the_terminal() -> None:
    printed = as_text(Audit(findings=[finding(request="r\x1b[2J\n\u202e\ud800ü", connector="\x07")]))
    assert r"request r\x1b[2J\n\u202e\ud800ü, first run, \x07; once" in printed
    assert plain("a b–ü") == "a b–ü"  # noqa: RUF001


def test_each_severity_has_its_colour() -> None:
    assert list(COLORS) == list(Severity)
    assert "\x1b[31m\x1b[1m[could: wrong output]\x1b[0m" in as_text(
        Audit(findings=[finding(severity=Severity.WRONG_OUTPUT)])
    )


def test_a_terminal_gets_colours_and_wrapped_lines(tmp_path: Path) -> None:
    path = str(write(tmp_path / "t.jsonl", OK, DRIFT))
    coloured = audited(path)
    assert "\x1b[31m\x1b[1m[could: crash]\x1b[0m" in coloured
    assert "\x1b[2m01:24:36.001\x1b[0m" in coloured
    assert max(map(len, unstyle(coloured).splitlines())) <= 72
    assert audited(path, NO_COLOR="1") == unstyle(coloured)
    assert audited(path, NO_COLOR="") == coloured
    assert "\x1b" not in audited("--json", path)


def test_a_pipe_gets_neither_of_them(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", DRIFT)
    command = [sys.executable, "-m", "kvtrail", "audit", str(path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "40"})
    assert (run.returncode, "\x1b" in run.stdout) == (1, False)
    assert max(map(len, run.stdout.splitlines())) > 200


def test_a_page_keeps_the_lines_of_formulas_and_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    invariant = "Invariant, where `x` is\na number:\n    x = 1\n- or not\n\nThe end."
    page = Page(title="A title", severities=(Severity.HANG,), classes=(), hint="Look.", invariant=invariant)
    monkeypatch.setattr(pages, "page", lambda rule: page)
    printed = rule_page("listed", columns=80)
    assert "Severity: \x1b[33m\x1b[1mhang\x1b[0m." in printed
    assert "Invariant, where x is a number:\n    x = 1\n- or not\n\nThe end." in unstyle(printed)
