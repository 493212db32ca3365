"""Writes a failing scenario as a self-contained pytest file. It fails with the faulty connector, and passes with one without
that fault, even if that one has other faults."""

from __future__ import annotations

import json
import pprint
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvtrail.connector.known.fake import SETTINGS
from kvtrail.connector.simulate.check.connector_under_test import ConnectorUnderTest
from kvtrail.connector.simulate.check.trial import failures, shrunk
from kvtrail.connector.simulate.judges.failure import Failure
from kvtrail.connector.simulate.redrive.redrive import Redriven, redrive
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.tracer.history.history import History

SHRINK_TRIES = 500
"""Maximum number of runs to shrink a recorded workload."""
VARIABLE = "KVTRAIL_CONNECTOR"
"""The environment variable with the name of another connector for the written test."""
_WIDTH = 116

_TEMPLATE = '''"""{title}

{story}

Written by kvtrail. Needs kvtrail (pip install kvtrail), vLLM and pytest, no GPU and no model: the scheduler is vLLM's own,
the model {fakes}. {variable}=<name or module:Class> tries another connector with the same
configuration.
"""

import json
import os
import sys

import pytest

pytest.importorskip("vllm")

from kvtrail.connector.simulate.check.connector_under_test import ConnectorUnderTest
from kvtrail.connector.simulate.check.trial import run
from kvtrail.connector.simulate.scenario import Scenario

CONNECTOR = {connector}
FOLDER = {folder}
"""Where it is imported from; empty if it is installed."""
CONFIGURATION = json.loads({extra})
"""Its kv_connector_extra_config."""
BESIDE = {beside}
"""Whether it is the second child of a MultiConnector."""
OWN_WORKERS = {own_workers}
"""Whether its own worker side runs."""
FAULT = {fault}
"""The fault that must not appear. Others are printed."""
SCENARIO = {scenario}


def test_{name}():
    sys.path.append(FOLDER)
    name = os.environ.get("{variable}", CONNECTOR)
    tested = ConnectorUnderTest(name, CONFIGURATION, beside=BESIDE, own_workers=OWN_WORKERS)
    played, failures = run(tested, Scenario.from_dict(SCENARIO))
    assert played.events, "nothing was recorded"
    for each in failures:
        print(f"{{each.id}}\\n{{each.text}}\\n")
    assert FAULT not in [each.id for each in failures]
    if ended := [each.id for each in failures if each.kind in ("crash", "hang")]:
        pytest.skip(f"inconclusive: another fault ended the run: {{', '.join(ended)}}")
'''


class DoesNotAppear(ValueError):
    """The recorded fault does not appear when the recording is driven again; the text says what does."""


@dataclass(frozen=True, kw_only=True)
class Regression:
    """A recorded fault as a test.

    Attributes:
        source: the text of the test.
        failure: the failure that it shows.
        scenario, original: the shrunk workload, and the recorded one.
    """

    source: str
    failure: Failure
    scenario: Scenario
    original: Scenario


def regression(
    history: History,
    *,
    connector: str | None = None,
    config: Mapping[str, Any] | None = None,
    recorder: str | None = None,
    rule: str | None = None,
    shrink_tries: int | None = SHRINK_TRIES,
    on_try: Callable[[Scenario], None] = lambda smallest: None,
) -> Regression:
    """Make a test of a recorded fault: drive the recording again, shrink the workload, and write it as a pytest file.

    The test shows the failure of `rule`, or the first failure that the recording shows too, or else the first one.
    `connector`, `config` and `recorder` are as for `redrive`; `on_try` is called with the smallest scenario so far.

    Raises:
        DoesNotAppear: nothing fails, or another rule than the requested one.
        NotDrivable, Unbuildable: as for `redrive`.
    """
    driven = redrive(history, connector=connector, config=config, recorder=recorder)
    recorded = {name: value for name, value in driven.settings.items() if name != SETTINGS}  # of the recorded requests
    tested = ConnectorUnderTest(driven.connector, {**recorded, **(config or {})})
    failure = _chosen(failures(driven.played), driven, rule)

    original = driven.workload.scenario
    small = shrunk(failure, driven.played, tested, original, tries=shrink_tries, on_try=on_try)
    if not small.seen:
        raise DoesNotAppear(f"{failure.id} appears only with what the store held when it was recorded")
    source = as_pytest(small.scenario, connector=tested, failure=small.failure)
    return Regression(source=source, failure=small.failure, scenario=small.scenario, original=original)


def _chosen(found: list[Failure], driven: Redriven, rule: str | None) -> Failure:
    recorded = [name for name, _ in driven.comparison.findings]
    wanted = [rule] if rule is not None else recorded
    for failure in found:
        if failure.kind == "rule" and failure.what in wanted:
            return failure
    if rule is None and found:
        return found[0]
    there = f"found this time: {', '.join(failure.id for failure in found)}" if found else "nothing is found this time"
    asked = (
        f"rule {rule}" if rule is not None else f"what was recorded ({', '.join(dict.fromkeys(recorded)) or 'nothing'})"
    )
    raise DoesNotAppear(f"{asked} does not appear when the recording is driven again with {driven.connector}: {there}")


def as_pytest(scenario: Scenario, *, connector: ConnectorUnderTest, failure: Failure) -> str:
    """The text of the file; `failure` is the one that the scenario shows with the connector."""
    return _TEMPLATE.format(
        title=_quotable(f"{connector.name}: {failure.id}"),
        story=textwrap.fill(_quotable(failure.text), _WIDTH),
        variable=VARIABLE,
        fakes="is a fake, the workers are the connector's" if connector.own_workers else "and the workers are fakes",
        connector=repr(connector.name),
        folder=repr(_folder(connector.name)),
        extra=repr(json.dumps(dict(connector.extra), sort_keys=True)),
        beside=connector.beside,
        own_workers=connector.own_workers,
        fault=repr(failure.id),
        scenario=pprint.pformat(scenario.as_dict(), width=_WIDTH, sort_dicts=False),
        name=slug(failure.what).replace("-", "_"),
    )


def _folder(name: str) -> str:
    """The folder from which a connector `module:Class` is imported; empty if it is installed, or if there is none."""
    top = name.partition(":")[0].partition(".")[0] if ":" in name else ""
    spec = find_spec(top) if top else None
    if spec is None:
        return ""
    place = Path(next(iter(spec.submodule_search_locations or ()), spec.origin or ""))
    return "" if "site-packages" in place.parts else str(place.parent)


def slug(text: str) -> str:
    """A name for files and tests: lower case, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-") or "failure"


def _quotable(text: str) -> str:
    return text.replace("\\", "/").replace('"""', "'''")
