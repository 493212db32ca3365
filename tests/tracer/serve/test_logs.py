"""The sidecar's log: readable for machines, and never flooded."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest
from history import history
from processes import Tracer, until
from wire import encoded

from kvtrail.tracer.serve.logs import MAX_LOGGED, MINUTE_S, RateLimit

Start = Callable[..., Tracer]
STALE = "L 749 c0 h256 -> 256\nA 256\nS 256+80\nP\nL 749 c336 h256 -> 256 cached\nend"


def test_it_can_be_json(start_tracer: Start) -> None:
    tracer = start_tracer("--log-format", "json")
    tracer.post(encoded(history(STALE)))
    until(lambda: "stale-lookup" in tracer.log.read_text())
    tracer.process.terminate()
    tracer.process.wait()
    lines = [json.loads(line) for line in tracer.log.read_text().splitlines()]
    assert {"time", "level", "logger", "message"} <= set.intersection(*map(set, lines))
    (found,) = [line for line in lines if "rule" in line]
    assert (found["rule"], found["request"], found["engine"]) == ("stale-lookup", "cmpl-1-0-0123abcd", "engine")


@pytest.fixture
def logger() -> logging.Logger:
    return logging.getLogger("kvtrail.test_logs")


def test_many_of_a_kind_are_counted(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    filter_ = RateLimit(clock=lambda: now_s)
    caplog.handler.addFilter(filter_)
    for number in range(MAX_LOGGED + 25):
        logger.warning("span %s is odd", number)
    logger.warning("the disk is full")
    assert caplog.text.count("is odd") == MAX_LOGGED
    assert "the disk is full" in caplog.text
    now_s = MINUTE_S
    for name in ("late", "later"):
        logger.warning("span %s is odd", name)
    assert "span late is odd (25 more like it were left out)\n" in caplog.text
    assert "span later is odd\n" in caplog.text
