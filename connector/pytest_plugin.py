"""A pytest plugin: `pytest --kv-connector module:Class` runs the conformance suite, a test for each requirement.

Without the option it does nothing, and imports neither vLLM nor the rest of kvtrail. It needs no sidecar, no network, no GPU.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from _pytest._code.code import ExceptionInfo, TerminalRepr
    from _pytest.terminal import TerminalReporter

CONNECTOR, CONFIG, LEVEL, STEPS, SEED, OUT = (
    "--kv-connector", "--kv-connector-config", "--kv-conformance-level", "--kv-conformance-steps", "--kv-conformance-seed",
    "--kv-conformance-out",
)  # fmt: skip
VERDICT = "verdict"
"""The last test: it fails where nothing failed, but that proves nothing; and for a failure that breaks only requirements of
another level."""


class Broken(Exception):
    """What a test's failure says."""


class Suite(pytest.Collector):
    """The suite, run once for all of its tests.

    Attributes:
        report: the suite's report, once it has run.
        refused: why it could not run.
        out: the folder that the report's files were written to.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.report: Mapping[str, Any] | None = None
        self.refused: str | None = None
        self.out: Path | None = None

    def collect(self) -> Iterator[pytest.Item]:
        from kvtrail.connector.simulate.conformance.requirements import of_level

        for requirement in of_level(self.config.getoption(LEVEL)):
            yield Requirement.from_parent(self, name=requirement.id)
        yield Conclusion.from_parent(self, name=VERDICT)

    def run(self) -> None:
        """Run it, and write its report where that is asked for."""
        from kvtrail.connector.commands.options import vllm_ready
        from kvtrail.refused import Refused

        option = self.config.getoption
        warnings.simplefilter("ignore")  # of vLLM and torch; pytest's own filters are for tests
        try:
            vllm_ready(f"pytest {CONNECTOR}")
        except Refused as missing:
            self.refused = str(missing)
            return
        from kvtrail.connector.simulate.check.session import NothingRecorded
        from kvtrail.connector.simulate.conformance import report, suite
        from kvtrail.connector.simulate.run import Unbuildable

        try:
            asked = suite.asked_of(
                self.name, config=option(CONFIG), level=option(LEVEL), steps=option(STEPS), seed=option(SEED)
            )
            result = suite.concluded(asked, suite.run(asked))
        except (NothingRecorded, Unbuildable) as error:
            self.refused = f"{self.name} cannot be run: {error}"
            return
        self.report = written = report.as_dict(result)
        if out := option(OUT):
            self.out = out
            report.write(result, written, out)


class _Test(pytest.Item):
    """A test of the suite: what the report says decides it."""

    parent: Suite

    def runtest(self) -> None:
        if self.parent.report is None:
            raise Broken(self.parent.refused or "the suite did not run")
        self.decide(self.parent.report)

    def decide(self, report: Mapping[str, Any]) -> None:
        """
        Raises:
            Broken: it fails.
        """
        raise NotImplementedError

    def repr_failure(self, excinfo: ExceptionInfo[BaseException], style: Any = None) -> str | TerminalRepr:
        """A failure's text alone: where this plugin raised it says nothing."""
        return str(excinfo.value) if isinstance(excinfo.value, Broken) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self.parent.name}: {self.name}"


class Requirement(_Test):
    def decide(self, report: Mapping[str, Any]) -> None:
        from kvtrail.connector.simulate.conformance.report import failure_text

        mine = next(each for each in report["requirements"] if each["id"] == self.name)
        if mine["failures"]:
            failures = [failure_text(each) for each in report["failures"] if each["id"] in mine["failures"]]
            raise Broken("\n\n".join([f"{mine['sentence']}\nSource: {mine['source']}", *failures]))
        if mine["why"] is not None:
            pytest.skip(f"not exercised: {mine['why']}")


class Conclusion(_Test):
    def decide(self, report: Mapping[str, Any]) -> None:
        if report["inconclusive"]:
            raise Broken("\n".join(["Nothing failed, but that proves nothing:", *report["inconclusive"]]))
        from kvtrail.connector.simulate.conformance.report import failure_text
        from kvtrail.connector.simulate.conformance.requirements import of_level

        shown = {each.id for each in of_level(self.config.getoption(LEVEL))}
        others = [failure_text(each) for each in report["failures"] if shown.isdisjoint(each["requirements"])]
        if others:
            raise Broken("\n\n".join(["It fails by what no other test here stands for:", *others]))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvtrail", "conformance of a vLLM KV connector (kvtrail)")
    group.addoption(CONNECTOR, metavar="MODULE:CLASS", help="Run the conformance suite on this KV connector.")
    group.addoption(CONFIG, metavar="JSON", type=json.loads, help="Its kv_connector_extra_config.")
    group.addoption(
        LEVEL,
        default="core",
        choices=("core", "extended", "all"),
        help="What every connector must do, what follows from its features, or both. [default: core]",
    )
    group.addoption(STEPS, metavar="N", type=int, help="Scheduling steps. [default: 20000]")
    group.addoption(SEED, metavar="N", type=int, default=0, help="The first seed. [default: 0]")
    group.addoption(OUT, metavar="FOLDER", type=Path, help="Write report.json, index.html and each failure there.")


def pytest_configure(config: pytest.Config) -> None:
    """Where no file is named, the suite's tests are all that is run."""
    if config.getoption(CONNECTOR) and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args.clear()


@pytest.hookimpl(tryfirst=True)  # so that -k and --deselect see the tests
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    if name := config.getoption(CONNECTOR):
        items.extend(session.genitems(Suite.from_parent(session, name=name, nodeid=name)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Run the suite before the first test of it, which would otherwise seem to take all the time, and might run out of it."""
    for suite in _suites(session):
        if not session.config.getoption("collectonly"):
            with warnings.catch_warnings():
                suite.run()


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    session = terminalreporter._session
    for suite in _suites(session) if session is not None else ():
        if suite.out is not None:
            terminalreporter.write_line(f"The report: {suite.out / 'index.html'}")


def _suites(session: pytest.Session) -> list[Suite]:
    """The suite, if any of its tests is to be run."""
    return list({item.parent: None for item in getattr(session, "items", ()) if isinstance(item, _Test)})
