"""What hangs is ended, with the reason; what has to wait for the processor is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import watchdog
from processes import until
from processor_time import ProcessorTime


def test_what_waits_in_vain_is_ended_and_says_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LOOKS_EACH_S", 0.02)
    with (
        pytest.raises(pytest.fail.Exception, match=r"does not come.*: no answer"),
        watchdog.Watchdog().watching(0.1),
    ):
        until(lambda: False, why=lambda: "no answer")


@pytest.mark.parametrize(
    ("computed_s", "delayed_s", "spent_s"),
    [
        pytest.param(0.0, 0.0, 10.0, id="all of it waits"),
        pytest.param(0.0, 4.0, 6.0, id="a thread was kept from the processor for a while"),
        pytest.param(3.0, 60.0, 3.0, id="many threads were, and some computed"),
        pytest.param(0.1, 60.0, 2.5, id="many threads were all the time"),
        pytest.param(18.0, 1.0, 18.0, id="two processors computed"),
    ],
)
def test_time_in_which_others_have_the_processor_is_not_spent(
    monkeypatch: pytest.MonkeyPatch, computed_s: float, delayed_s: float, spent_s: float
) -> None:
    def readings(first: Any, second: Any) -> Any:
        values: Iterator[Any] = iter((first, second))
        return lambda *_: next(values)

    monkeypatch.setattr("time.monotonic", readings(100.0, 110.0))
    monkeypatch.setattr(watchdog, "processor_s", readings(5.0, 5.0 + computed_s))
    monkeypatch.setattr(watchdog.Patience, "_delays", readings({"a": 0}, {"a": int(delayed_s * 1e9)}))
    patience = watchdog.Patience()
    patience.look()
    assert patience.spent_s == spent_s


def report(seconds: float, fixtures: dict[str, float] | None = None, costly: str | None = None) -> pytest.TestReport:
    taken = {"seconds": seconds, "fixtures": fixtures or {}, "costly": costly}
    return pytest.TestReport(
        "tests/tracer/test_x.py::test_y", ("", None, ""), {}, "passed", None, "call", processor_time=taken
    )


def test_a_test_that_takes_too_long_breaks_the_budget_and_a_fixture_is_counted_for_itself() -> None:
    times = ProcessorTime(enforced=True, has_workers=False)
    times.pytest_runtest_logreport(report(21.0, {"fixture story of tests/e2e": 19.0}))
    times.pytest_runtest_logreport(report(10.5))
    assert times.judge() == []
    assert "beyond 10 s and not marked costly: tests/tracer/test_x.py::test_y (12.5 s)" in "\n".join(times.summary())
    assert "    31.5  tests/tracer" in "\n".join(times.summary())
    times.pytest_runtest_logreport(report(18.0))
    assert times.judge() == ["tests/tracer/test_x.py::test_y took 30.5 s"]
    times.pytest_runtest_logreport(report(29.0, costly="starts an engine"))
    assert times.judge() == []
    assert "not marked costly" not in "\n".join(times.summary())
    times.pytest_runtest_logreport(report(1.0))
    assert times.judge() == ["tests/tracer/test_x.py::test_y took 60.5 s"]
    times.rest = 2469.0
    assert times.judge()[1:] == ["all tests took 2548 s"]
    assert "OVER BUDGET: all tests took 2548 s" in "\n".join(times.summary())
