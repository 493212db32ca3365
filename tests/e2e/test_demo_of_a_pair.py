"""`kvtrail demo --pd`: two real engines with vLLM's NixlConnector between them, as a user runs them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from demos import demo, total

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("nixl") is None, reason="needs nixl: pip install --no-deps -r constraints-pd.txt"),
]
LATE = 4
"""Requests that the router hands on too late."""


def test_two_engines_give_the_tokens_of_one(tmp_path: Path) -> None:
    with demo(tmp_path, "--pd", "--once") as run:
        assert run.finish() == 0, run.output()
        output = run.output()
        assert "12 requests served" in output
    assert (total(output, "wrong answers"), total(output, "findings")) == (0, 0)


def test_a_stale_hand_off_gives_wrong_answers_and_each_is_named(tmp_path: Path) -> None:
    with demo(tmp_path, "--pd", "--bug", "stale-handoff", "--once") as run:
        assert run.finish() == 0, run.output()
        output = run.output()
    assert total(output, "wrong answers") == LATE
    assert "Each request with a wrong answer is named" in output
    assert "(on the engine that prefilled it)" in output


def test_healed_it_gives_none_and_goes_on_until_ctrl_c(tmp_path: Path) -> None:
    with demo(tmp_path, "--pd", "--bug", "stale-handoff", "--guard", "heal") as run:
        run.wait_for_output("The workload repeats gently until Ctrl-C.")
        assert total(run.output(), "wrong answers") == 0
        assert f"{LATE} of them healed" in run.output()
        assert "The generated tokens are the same as those of an engine without a connector." in run.output()
