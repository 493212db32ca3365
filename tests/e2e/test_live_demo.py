"""A running `kvtrail demo` with LMCache #2158's bug: the one of the story whose engine lives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from demos import Demo, total
from processes import until

pytest.importorskip("streamlit", reason="the dashboard needs Streamlit")
pytest.importorskip("vllm", reason="the demo runs vLLM")
TITLE = "A cached lookup answer was handed out without regard to the computed tokens"


def test_healed_the_workload_finishes_and_repeats(living_demo: Demo) -> None:
    output = living_demo.output()
    assert "The generated tokens are the same as those of an engine without a connector." in output
    assert re.search(r"^stale-lookup, .* times: A cached lookup answer", output, flags=re.MULTILINE), output
    assert "  It could: crash. It did: healed.\n" in output
    assert total(output, "requests") == 16
    assert total(output, "tokens loaded") > 0
    wait_for_requests(living_demo)


def test_a_second_one_in_its_folder_is_refused(living_demo: Demo, tmp_path: Path) -> None:
    folder = living_demo.out.parent / ".demo"
    second = Demo(tmp_path, "--folder", str(folder))
    assert second.finish() == 1
    assert f"Error: another demo is running in {folder}" in second.output()


def wait_for_requests(run: Demo) -> None:
    """Wait until it has served more requests."""
    served = run.get("/api/totals")["requests"]
    until(lambda: run.get("/api/totals")["requests"] > served)
