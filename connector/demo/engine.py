"""The demo's engine, in a process of its own because an injected bug kills it.

`python -m kvtrail.connector.demo.engine` takes an `Order` as JSON, reports its progress as JSON lines on standard output, and
runs until it is done or its standard input closes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from kvtrail.connector.demo import workload
from kvtrail.connector.simulate import tiny_hybrid, tiny_model

GENTLY_S = 5.0
"""Pause between two rounds."""
HOST_BYTES = 64 * 2**20
"""The connector's host memory: plenty for the demo's model."""
PASSES = 2
"""How often a round sends the same prompts."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the engine runs.

    Attributes:
        model: folder for the model.
        hybrid: whether half of the model's layers have a sliding window.
        bug: a fault of `kvtrail.connector.faults`, or empty.
        guard: `observe`, `heal` or `raise`.
        plain: run without any connector, for the tokens to compare with.
        once: end after one round, instead of when standard input closes.
        metrics_port: serve vLLM's own metrics there, as `vllm serve` does; 0 does not serve them.
    """

    model: str
    hybrid: bool
    bug: str
    guard: str
    plain: bool
    once: bool
    metrics_port: int

    def connector(self) -> dict[str, Any] | None:
        """The `kv_transfer_config`."""
        if self.plain:
            return None
        return {
            "kv_connector": f"Faulty:{self.bug}:OffloadConnector" if self.bug else "OffloadConnector",
            "kv_connector_module_path": "kvtrail.connector",
            "kv_connector_extra_config": {
                "cpu_bytes_to_use": HOST_BYTES,
                "kvtrail": {"guard": self.guard, "level": "detailed", "fingerprints": "all"},
            },
        }


def main() -> None:
    """Run an order. vLLM's prefix cache is reset before each pass, so the second pass of a round loads from the host."""
    from kvtrail.connector.recording.recorder import recorders

    order = Order(**json.loads(sys.argv[1]))
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else is printed, such as vLLM's log, goes to standard error
    threading.Thread(target=_end_with_parent, daemon=True).start()
    options: dict[str, Any] = {"write": tiny_hybrid.write, **tiny_hybrid.OPTIONS} if order.hybrid else {}
    llm = tiny_model.build(Path(order.model), order.connector(), disable_log_stats=not order.metrics_port, **options)
    if order.metrics_port:
        from prometheus_client import start_http_server  # a dependency of vLLM, which counts in its registry

        start_http_server(order.metrics_port, "127.0.0.1")
    tokens: dict[str, list[int]] = {}

    def report(**what: Any) -> None:
        print(json.dumps(what), file=channel, flush=True)

    def served(now: int) -> None:
        report(kind="progress", done=len(tokens) + now)

    for number in range(1) if order.once else count():
        # The bug needs new prompts: a request with a prefix that is loaded at once is not preempted.
        jobs = workload.stale_lookup(seed=number) if order.bug else workload.shared_prefixes()
        if number == 0:
            report(kind="ready", requests=len(jobs) * PASSES)
        tokens.clear()
        for part in range(PASSES):
            llm.reset_prefix_cache()
            named = [replace(job, id=f"r{number + 1}p{part + 1}-{job.id}") for job in jobs]
            tokens.update(workload.run(llm, named, served))
        for recorder in recorders():
            recorder.flush()
        report(kind="round", tokens=tokens)
        if not order.once:
            time.sleep(GENTLY_S)


def _end_with_parent() -> None:
    """Standard input closes when the parent ends, however it ends."""
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
