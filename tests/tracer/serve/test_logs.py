"""The sidecar's log: readable for machines, and never flooded."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest
from history import history
from processes import Tracer, until
from wire import encoded

from kvtrail.tracer.serve.logs import MAX_LOGGED, RateLimit

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


def test_of_many_of_a_kind_the_number_passes(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    filter_ = RateLimit(minute_s=0.2)
    caplog.handler.addFilter(filter_)
    for number in range(MAX_LOGGED + 25):
        logger.warning("span %s is odd", number)
    logger.warning("the disk is full")
    assert caplog.text.count("is odd") == MAX_LOGGED
    assert "the disk is full" in caplog.text
    until(lambda: "25 more messages were left out in 0 s: span %s is odd" in caplog.text)
    logger.warning("span %s is odd", "late")
    assert "span late is odd" in caplog.text, "a new minute has begun"
