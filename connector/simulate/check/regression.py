"""A failing scenario as a pytest file that stands alone: it fails with the faulty connector, and passes with a mended one."""

from __future__ import annotations

import json
import pprint
import re
import textwrap

from kvtrail.connector.simulate.check.subject import Subject
from kvtrail.connector.simulate.check.trial import Failure
from kvtrail.connector.simulate.scenario import Scenario

VARIABLE = "KVTRAIL_CONNECTOR"
"""Where the written test looks for another connector's name."""
_WIDTH = 116

_TEMPLATE = '''"""{title}

{story}

Written by kvtrail; needs it (pip install kvtrail), vLLM and pytest, no GPU and no model. The scheduler is vLLM's own, the
model and the workers are made up. With {variable}=<name or module:Class> another connector is tried, with the same
configuration.
"""

import json
import os

import pytest

pytest.importorskip("vllm")

from kvtrail.connector.simulate.check.subject import Subject
from kvtrail.connector.simulate.check.trial import run
from kvtrail.connector.simulate.scenario import Scenario

CONNECTOR = {connector}
CONFIGURATION = json.loads({extra})
"""Its kv_connector_extra_config."""
BESIDE = {beside}
"""Whether it is the second child of a MultiConnector."""
SCENARIO = {scenario}


def test_{name}():
    subject = Subject(os.environ.get("{variable}", CONNECTOR), CONFIGURATION, beside=BESIDE)
    played, failures = run(subject, Scenario.from_dict(SCENARIO))
    assert played.events, "nothing was recorded"
    assert not failures, "\\n\\n".join(f"{{each.id}}\\n{{each.text}}" for each in failures)
'''


def as_pytest(scenario: Scenario, *, connector: Subject, failure: Failure) -> str:
    """The file's text; `failure` is what the scenario shows with that connector."""
    told = textwrap.fill(_quotable(failure.text), _WIDTH)
    return _TEMPLATE.format(
        title=_quotable(f"{connector.name}: {failure.id}"),
        story=told,
        variable=VARIABLE,
        connector=repr(connector.name),
        extra=repr(json.dumps(dict(connector.extra), sort_keys=True)),
        beside=connector.beside,
        scenario=pprint.pformat(scenario.as_dict(), width=_WIDTH, sort_dicts=False),
        name=slug(failure.what).replace("-", "_"),
    )


def slug(text: str) -> str:
    """A name for files and tests: lower case, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-") or "failure"


def _quotable(text: str) -> str:
    return text.replace("\\", "/").replace('"""', "'''")
