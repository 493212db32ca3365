"""The demo of two engines: what it asks of an engine's process, what it refuses, and what it does not let pass."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from importlib import util
from multiprocessing import Pipe
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvtrail.connector.commands.demo import demo
from kvtrail.connector.demo import demo as driver
from kvtrail.connector.demo.children import Children
from kvtrail.connector.demo.demo import DemoError
from kvtrail.connector.demo.options import OPT, STALE_HANDOFF, Options
from kvtrail.connector.demo.pair import ALONE, AskedEngine, EngineDied
from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.settings import Guard

OPTIONS = Options(
    once=True, pd=True, model=OPT, bug=STALE_HANDOFF, guard="observe", folder=Path(),
    grpc_port=1, http_port=2, dashboard_port=3, metrics_port=None,
)  # fmt: skip


@pytest.mark.costly("starts a real engine")
def test_an_engine_answers_over_its_pipe_and_ends(tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="an engine runs vLLM")
    ours, theirs = Pipe()
    order = json.dumps([theirs.fileno(), str(tmp_path / "model"), None, False, 0])
    with Children() as children:
        child = children.start(
            "engine", ["-m", "kvtrail.connector.demo.engine_process", order], log=tmp_path / "log", env=os.environ,
            pass_fds=[theirs.fileno()],
        )  # fmt: skip
        theirs.close()
        engine = AskedEngine(ALONE, ours, child.log)
        engine.ready.result()
        job = DemoRequest("job", tuple(range(3, 103)), 8)
        one, other = engine.ask(job), engine.ask(replace(job, id="other"))
        assert len(one.result().tokens) == 8
        assert one.result().tokens == other.result().tokens
        assert one.result().reason == "length"
        assert engine.kept() == 0
        done: list[int] = []
        engine.forget()
        ran = engine.run_all([replace(job, id="first"), replace(job, id="second")], done.append).result()
        assert (done[-1], [*map(tuple, ran.values())]) == (2, [one.result().tokens] * 2)
        engine.ask_to_end()
        assert child.process.wait() == 0
        with pytest.raises(EngineDied):
            engine.ask(replace(job, id="late")).result()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--bug", STALE_HANDOFF], "needs two engines: add --pd"),
        (["--pd", "--bug", "stale-lookup"], "--pd has the bug 'stale-handoff' only"),
        (["--pd", "--model", "hybrid"], "--pd runs the tiny OPT"),
        (["--pd", "--metrics-port", "8000"], "--pd runs the tiny OPT"),
        (["--pd"], "--pd needs NIXL, which is not installed here"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == "nixl" else object())
    result = CliRunner().invoke(demo, arguments)
    assert result.exit_code == 2
    assert says in result.output


@pytest.mark.parametrize(
    ("guard", "wrong", "found", "says"),
    [
        ("observe", {"a", "b"}, {"a": False}, r"not named: \['b'\]"),
        ("observe", set(), {"a": False, "b": False}, "does not bring the bug"),
        ("heal", {"a"}, {"a": True, "b": True}, "not healed"),
        ("heal", set(), {"a": True, "b": False}, "not healed"),
        ("heal", set(), {"a": True}, "not healed"),
    ],
)
def test_it_fails_where_a_wrong_answer_is_not_named_or_not_healed(
    guard: Guard, wrong: set[str], found: dict[str, bool], says: str
) -> None:
    with pytest.raises(DemoError, match=says):
        driver._compare(replace(OPTIONS, guard=guard), wrong, {"a", "b"}, found)


@pytest.mark.parametrize(
    ("guard", "wrong", "found", "says"),
    [
        ("observe", {"a", "b"}, {"a": False, "b": False}, "Each request with a wrong answer is named"),
        ("observe", {"a", "b"}, {"a": False, "b": False, "c": False}, "1 request of these came before anybody"),
        ("heal", set(), {"a": True, "b": True}, "2 of them healed"),
        ("heal", set(), {"a": True, "b": True, "c": False}, "1 request of these came before anybody"),
    ],
)
def test_it_says_what_was_named_and_healed(
    guard: Guard, wrong: set[str], found: dict[str, bool], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    driver._compare(replace(OPTIONS, guard=guard), wrong, {"a", "b"}, found)
    assert says in capsys.readouterr().out
