"""A real LMCache in a process of its own, and a real vLLM engine that is traced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import real_lmcache
from processes import Tracer, until
from real_lmcache import Run

pytest_plugins = ["real_lmcache"]


def test_the_multiprocess_connector_is_traced(
    tmp_path: Path, start_tracer: Callable[..., Tracer], without_lmcache: Run
) -> None:
    """Answers, matches, plans, and the ends that workers report; the server's copies are not seen. The tokens are those of an
    engine without a connector, though what was computed in the first pass is loaded in the second."""
    tracer = start_tracer()
    with real_lmcache.server(tmp_path, "0.5.6") as port:
        run = real_lmcache.run(
            tmp_path, "0.5.6", grpc_port=tracer.grpc_port, server_port=port, kvtrail={"level": "detailed"}
        )
    assert run.tokens == without_lmcache.tokens

    def ended() -> list[dict[str, object]]:
        return [each for each in tracer.get("/api/requests", limit=500) if each["ended_ns"] is not None]

    until(lambda: len(ended()) == 16, why=ended)
    assert tracer.get("/api/findings") == []
    assert {each["verdict"] for each in ended()} == {"ok"}
    steps = [step for each in ended() for step in tracer.get(f"/api/requests/{each['request']}")["steps"]]
    names = Counter(step["name"] for step in steps)
    assert not names.keys() & {"kv.load", "kv.store"}
    assert min(names[name] for name in ("kv.load.plan", "kv.store.plan", "kv.received", "kv.sent")) >= 8
    matched = [step for step in steps if step["name"] == "kv.lookup" and step["numbers"].get("matched")]
    assert all(step["numbers"]["matched"] % 256 == 0 for step in matched)
    assert matched
