"""What `kvtrail check` finds in planted bugs is what is pinned. It needs vLLM, so it stands apart from the other pins."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

from pins import checked, compare


@pytest.mark.costly("it plays a dozen scenarios on the real scheduler; alone it imports vLLM as well")
def test_what_check_finds_in_planted_bugs_is_as_pinned() -> None:
    compare("check", checked.check())
