"""Engines are killed with SIGKILL, end well, or are lost with all that is theirs: Prometheus counts them by cause, and
Alertmanager pages for those that died alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the engines are vLLM's scheduler")

import forks
import psutil
from ending_engine import OPEN, bare_engine
from processes import SLOW_S, serve, until
from watching import Prometheus, Webhook, programs, running

pytestmark = pytest.mark.skipif(
    programs() is None, reason="not installed: apt-get install prometheus prometheus-alertmanager"
)
ENDS = {"killed": "killed", "broken": "exception", "gone": "lost_contact", "drained": None}
"""How the engines end, by name, and the cause of death that this is."""


@dataclass
class Watched:
    """What watches, once all engines have ended."""

    engines: dict[str, str]
    """The engines' ids, by how they end."""
    prometheus: Prometheus
    webhook: Webhook

    def value(self, metric: str, name: str, **labels: str) -> float:
        """The latest value of a metric of an engine."""
        chosen = ",".join(f'{key}="{value}"' for key, value in {"engine": self.engines[name], **labels}.items())
        found = self.prometheus.get("query", query=f"sum({metric}{{{chosen}}})")["result"]
        return float(found[0]["value"][1]) if found else 0.0


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    engines: dict[str, str] = {}
    with ExitStack() as stack:
        webhook = Webhook()
        stack.callback(webhook.server.shutdown)
        tracer = serve(folder)
        stack.callback(tracer.end)
        prometheus = stack.enter_context(running(folder, [tracer.http_port], [], webhook))
        for name in ENDS:
            engine, exporting, log = _started(folder / name, tracer.grpc_port, name)
            stack.callback(engine.kill)
            until(lambda: {each["engine"] for each in _fleet(tracer)} - {*engines.values()}, why=log.read_text)
            (engines[name],) = {each["engine"] for each in _fleet(tracer)} - {*engines.values()}
            until(lambda name=name: _state(tracer, engines[name]) != "unseen", why=log.read_text)  # type: ignore[misc]
            if name == "gone":
                psutil.Process(exporting).kill()
            if name in ("killed", "gone"):
                assert engine.pid is not None
                os.kill(engine.pid, signal.SIGKILL)
            engine.join(SLOW_S)
        yield Watched(engines, prometheus, webhook)


def _started(folder: Path, grpc_port: int, name: str) -> tuple[Any, int, Path]:
    """An engine with open requests, the id of its export process, and its log. Each is of a service of its own: none
    replaces another."""
    folder.mkdir()
    pipe, its = Pipe()
    environment = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{grpc_port}",
        "OTEL_SERVICE_NAME": name,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    log = folder / "engine.log"
    end = "killed" if name == "gone" else name
    engine = forks.start(bare_engine, its, folder, end, environment=environment, out=log)
    its.close()
    assert pipe.poll(SLOW_S), log.read_text()
    return engine, pipe.recv(), log


def _fleet(tracer: Any) -> list[dict[str, Any]]:
    return tracer.get("/api/fleet")["engines"]  # type: ignore[no-any-return]


def _state(tracer: Any, engine: str) -> str:
    return str(next(each["state"] for each in _fleet(tracer) if each["engine"] == engine))


@pytest.mark.parametrize(("name", "cause"), ENDS.items())
def test_a_death_is_counted_by_its_cause_with_what_was_lost(watched: Watched, name: str, cause: str | None) -> None:
    if cause is None:
        until(lambda: watched.value("kvtrail_requests_total", name, outcome="length_capped") == len(OPEN))
        assert watched.value("kvtrail_engine_deaths_total", name) == 0
        assert watched.value("kvtrail_engine_lost_requests_total", name) == 0
        return
    until(
        lambda: watched.value("kvtrail_engine_lost_requests_total", name, cause=cause) == len(OPEN),
        why=lambda: watched.prometheus.get("query", query="{__name__=~'kvtrail_engine_.*'}"),
    )
    assert watched.value("kvtrail_engine_deaths_total", name, cause=cause) == 1
    assert watched.value("kvtrail_engine_deaths_total", name) == 1


def test_a_death_pages_and_a_drain_does_not(watched: Watched) -> None:
    def alerts() -> Any:
        return watched.prometheus.get("alerts")

    for name, cause in (("killed", "killed"), ("broken", "exception")):
        engine = watched.engines[name]
        until(lambda: watched.webhook.heard("KvtrailEngineDied", "firing", engine=engine, cause=cause), why=alerts)  # noqa: B023
    lost = watched.engines["gone"]
    until(lambda: watched.webhook.heard("KvtrailEngineSilent", "firing", engine=lost), why=alerts)
    died = {each["labels"]["engine"] for each in watched.webhook.heard("KvtrailEngineDied", "firing")}
    silent = {each["labels"]["engine"] for each in watched.webhook.heard("KvtrailEngineSilent", "firing")}
    assert died == {watched.engines["killed"], watched.engines["broken"]}
    assert silent == {lost}
