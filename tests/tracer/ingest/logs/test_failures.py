"""Whom a traceback blames."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtrail.tracer.events.events import Failure
from kvtrail.tracer.ingest.logs.reader import LogReader

AGAIN = "WARNING scheduler.py:1242] Sequence group cmpl-1 is preempted by PreemptionMode.RECOMPUTE mode"
"""Another line that is read, so that there is one."""


@pytest.mark.parametrize(
    ("path", "is_connectors"),
    [
        ("/home/u/kvtrail/.venv/lib/python3.11/site-packages/vllm/renderers/base.py", False),
        ("/opt/lmcache/venv/lib/python3.12/dist-packages/vllm/v1/engine/core.py", False),
        ("/opt/kvtrail/python/lib/python3.11/asyncio/runners.py", False),
        ("/home/u/connectors/vllm/vllm/v1/engine/core.py", False),
        ("/home/u/kvtrail/.venv/bin/vllm", False),
        ("/home/kvtrail/app/serve.py", False),
        ("C:\\kvtrail\\Lib\\site-packages\\vllm\\model.py", False),
        ("/opt/venv/lib/python3.11/site-packages/lmcache/v1/cache_engine.py", True),
        ("/opt/venv/lib/python3.11/site-packages/kvtrail/connector/tracing/traced.py", True),
        ("/opt/venv/lib/python3.11/site-packages/vllm/distributed/kv_transfer/kv_connector/v1/base.py", True),
        ("/opt/venv/lib/python3.11/site-packages/acme_connector/plans/plan.py", True),
        ("/src/LMCache/lmcache/v1/x.py", True),
        ("/src/LMCache/lmcache/integration/vllm/utils.py", True),
        ("/src/kvtrail/src/kvtrail/connector/offload/plan.py", True),
        ("/home/u/vllm/vllm/v1/kv_offload/worker.py", True),
        ("/src/vllm-ascend/vllm_ascend/distributed/kv_connector/pool/x.py", True),
        ("/srv/my_connector/plans.py", True),
    ],
)
def test_only_the_path_within_a_package_says_that_a_file_is_a_connector_s(
    tmp_path: Path, path: str, is_connectors: bool
) -> None:
    lines = [
        "Traceback (most recent call last):",
        f'  File "{path}", line 2, in run',
        "    go()",
        "ValueError: no",
        AGAIN,
    ]
    log = tmp_path / "server.log"
    log.write_text("\n".join(lines))
    assert len([event for event in LogReader(log).events() if isinstance(event, Failure)]) == is_connectors
