"""vLLM's real schedulers without a model, in a process of their own, like a server: spans to a tracer, metrics on a port.

It reads orders from its input, a line each, and answers when it has done them:

    serve   requests that share prefixes and preempt each other, on the OffloadConnector
    load    the same on vLLM's OffloadingConnector, whose loads are asynchronous
    break   LMCache #2158's bug, which ends the engine

Call: python served_engine.py FOLDER PORT
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

from prometheus_client import start_http_server

from connector import recorder
from connector.drive.bare import BareScheduler
from connector.drive.workload import Job, shared_prefixes, stale_lookup

ROUNDS, PAUSE_S = 4, 0.6
"""Work comes in rounds, so that whoever scrapes sees counters move."""


class Engines:
    """The engines, and vLLM's own Prometheus logger, which they share as the engines of one server do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logger: Any = None

    def serve(self) -> None:
        self._run(self._engine("serving", "OffloadConnector", {"chunk_size": 256}), rounds=ROUNDS)

    def load(self) -> None:
        self._run(self._engine("loading", "TracedOffloadingConnector", {"cpu_bytes_to_use": 50_000_000}), rounds=ROUNDS)

    def break_(self) -> None:
        engine = self._engine("broken", "Faulty:stale-lookup:OffloadConnector", {"chunk_size": 256})
        with contextlib.suppress(AssertionError):  # the bug's end
            self._steps(engine, stale_lookup(), "bug")

    def _engine(self, engine_id: str, name: str, extra: dict[str, Any]) -> BareScheduler:
        from vllm.v1.metrics.loggers import PrometheusStatLogger

        connector = {"kv_connector": name, "kv_connector_extra_config": extra, "engine_id": engine_id}
        if ":" in name:
            connector["kv_connector_module_path"] = "connector"
        bare = BareScheduler(self._folder / "model", connector)
        if self._logger is None:
            self._logger = PrometheusStatLogger(bare.config, [0])
        make_stats = bare.scheduler.make_stats

        def logged(*arguments: Any, **named: Any) -> Any:
            stats = make_stats(*arguments, **named)
            self._logger.record(stats, None)
            return stats

        bare.scheduler.make_stats = logged  # type: ignore[method-assign]  # of this scheduler only
        return bare

    def _run(self, bare: BareScheduler, *, rounds: int) -> None:
        for number in range(rounds):
            self._steps(bare, shared_prefixes(seed=number % 2), str(number))
            bare.scheduler.reset_prefix_cache()  # the engine's own prefix cache, so that the connector is asked
            time.sleep(PAUSE_S)

    def _steps(self, bare: BareScheduler, jobs: list[Job], name: str) -> None:
        waiting = sorted(jobs, key=lambda job: job.arrives_at_step)[::-1]
        step = 0
        while waiting or bare.scheduler.has_unfinished_requests():
            while waiting and (waiting[-1].arrives_at_step <= step or not bare.scheduler.has_unfinished_requests()):
                job = waiting.pop()
                bare.add(f"{job.id}-{name}", list(job.prompt), job.max_tokens)
            bare.step()
            step += 1


def main() -> None:
    """Do what is asked, until there is nothing more."""
    engines = Engines(Path(sys.argv[1]))
    start_http_server(int(sys.argv[2]), "127.0.0.1")
    print("ready", flush=True)
    for order in map(str.strip, sys.stdin):
        getattr(engines, {"break": "break_"}.get(order, order))()
        for each in recorder.recorders():
            each.flush()
        print(order, flush=True)


if __name__ == "__main__":
    main()
