"""The documentation's connector is one that a maintainer may copy: `kvtrail check` finds nothing in it, and does run it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from kvtrail.connector.simulate.check.session import check

FOLDER = Path(__file__).parents[4] / "docs" / "conformance"
LINES = 165
"""The most that a maintainer reads in a few minutes, without blank ones."""


@pytest.mark.parametrize("steps", [4_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_the_documentation_s_connector_is_correct(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    checked = check("my_connector:MyConnector", steps=steps, shrink_tries=0)
    assert [found.failure for found in checked.found] == []
    assert checked.fake_workers is None, "its own workers run"
    assert checked.loads_read > 20
    assert checked.blocks_compared > 10_000


def test_workers_that_keep_what_is_evicted_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's side forgets a block, and does not tell the workers: each block that is stored takes room for ever."""
    monkeypatch.syspath_prepend(str(FOLDER))
    my_connector = importlib.import_module("my_connector")

    def forget(self: Any, key: bytes) -> None:
        del self.held[key]
        self.plan.stores.pop(key, None)

    monkeypatch.setattr(my_connector.MyConnector, "drop", forget)
    checked = check("my_connector:MyConnector", profiles=["room"], runs=1, steps=None, shrink_tries=0)
    (found,) = checked.found
    assert found.failure.id == "rest: workers keep what is evicted"
    kv = 16 * 8 * 2 * 2 * 32 * 64 * 4  # prompts, blocks, layers, heads, tokens, numbers of a token, bytes
    assert f"as many others: {kv:,} bytes" in found.failure.text
    assert f"has grown by {kv:,} bytes" in found.failure.text


def test_it_stays_short() -> None:
    text = (FOLDER / "my_connector.py").read_text(encoding="utf-8")
    assert sum(bool(line.strip()) for line in text.splitlines()) <= LINES
