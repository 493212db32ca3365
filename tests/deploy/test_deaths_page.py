"""Engines are killed with SIGKILL, end well, or are lost with all that is theirs: Prometheus counts them by cause, and
Alertmanager pages for those that died alone."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="the engines are vLLM's scheduler")

from ending_engine import ENDS, OPEN
from processes import until
from story import DyingDemo, Watching, only_engine
from watching import Prometheus


def value(prometheus: Prometheus, metric: str, engine: str, **labels: str) -> float:
    """The latest value of a metric of an engine."""
    chosen = ",".join(f'{key}="{value}"' for key, value in {"engine": engine, **labels}.items())
    found = prometheus.get("query", query=f"sum({metric}{{{chosen}}})")["result"]
    return float(found[0]["value"][1]) if found else 0.0


@pytest.mark.parametrize(("name", "cause"), ENDS.items())
def test_a_death_is_counted_by_its_cause_with_what_was_lost(
    prometheus: Prometheus, ended_engines: dict[str, str], name: str, cause: str | None
) -> None:
    engine = ended_engines[name]
    if cause is None:
        until(lambda: value(prometheus, "kvtrail_requests_total", engine, outcome="length_capped") == len(OPEN))
        assert value(prometheus, "kvtrail_engine_deaths_total", engine) == 0
        assert value(prometheus, "kvtrail_engine_lost_requests_total", engine) == 0
        return
    until(
        lambda: value(prometheus, "kvtrail_engine_lost_requests_total", engine, cause=cause) == len(OPEN),
        why=lambda: prometheus.get("query", query="{__name__=~'kvtrail_engine_.*'}"),
    )
    assert value(prometheus, "kvtrail_engine_deaths_total", engine, cause=cause) == 1
    assert value(prometheus, "kvtrail_engine_deaths_total", engine) == 1


def test_a_death_pages_and_a_drain_does_not(
    prometheus: Prometheus, watch: Watching, ended_engines: dict[str, str], dying_demo: DyingDemo
) -> None:
    def alerts() -> Any:
        return prometheus.get("alerts")

    heard, lost = watch.webhook.heard, ended_engines["gone"]
    deaths = {ended_engines[name]: str(ENDS[name]) for name in ("killed", "broken")}
    deaths[only_engine(dying_demo)] = "exception"
    for engine, cause in deaths.items():
        until(lambda: heard("KvtrailEngineDied", "firing", engine=engine, cause=cause), why=alerts)  # noqa: B023
    until(lambda: heard("KvtrailEngineSilent", "firing", engine=lost), why=alerts)
    assert {each["labels"]["engine"] for each in heard("KvtrailEngineDied", "firing")} == deaths.keys()
    assert {each["labels"]["engine"] for each in heard("KvtrailEngineSilent", "firing")} == {lost}
