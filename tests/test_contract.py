"""Public names are those of 0.1.0's list, `tests/contract.json`: what users build on does not change unseen.

Until 0.1.0 is tagged, `python tests/test_contract.py` writes the list again. After that names may be added, and none may be
removed or renamed (docs/versions.md).
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import click

from kvtrail.__main__ import COMMANDS, main
from kvtrail.connector.settings import Settings
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import FIELDS, STEP_FIELDS
from kvtrail.tracer.rules import pages
from kvtrail.tracer.store.sqlite.opening import SCHEMA_VERSION

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_name("contract.json")


def public_names() -> dict[str, list[str]]:
    """The names that users build on, by what they are of."""
    attributes = [
        *semconv.COMMON,
        *semconv.RESOURCE,
        *semconv.FINDING_FIELDS,
        *STEP_FIELDS,
    ]
    metrics = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    sources = (ROOT / "tracer" / "serve" / "api").glob("*.py")
    routes = [re.findall(r'@(api|app)\.get\(\s*"([^"]+)"', path.read_text(encoding="utf-8")) for path in sources]
    options = []
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)  # type: ignore[attr-defined]
        assert command is not None
        options += [f"{name} {option}" for each in command.params for option in each.opts if option.startswith("--")]
    names = {
        "spans": [str(kind) for kind in FIELDS],
        "attributes": [each.key for each in (*attributes, *(each for of in FIELDS.values() for each in of))],
        "metrics": re.findall(r"^\| `(kvtrail_\w+)` \|", metrics, re.MULTILINE),
        "rules": [*pages.files()],
        "settings": [each.name for each in fields(Settings)],
        "options": options,
        "routes": [f"{'/api' if prefix == 'api' else ''}{path}" for found in routes for prefix, path in found],
        "store": [f"schema {SCHEMA_VERSION}"],
    }
    return {name: sorted(set(values)) for name, values in names.items()}


def test_no_public_name_is_gone() -> None:
    promised = json.loads(LIST.read_text(encoding="utf-8"))
    found = public_names()
    assert promised.keys() == found.keys()
    for kind, names in promised.items():
        assert not (gone := set(names) - set(found[kind])), f"{kind} that 0.1.0 has: {sorted(gone)}"


def test_the_list_is_complete() -> None:
    promised = json.loads(LIST.read_text(encoding="utf-8"))
    for kind, names in public_names().items():
        assert not (new := set(names) - set(promised[kind])), f"{kind} that are not in the list: {sorted(new)}"


if __name__ == "__main__":
    LIST.write_text(json.dumps(public_names(), indent=1) + "\n", encoding="utf-8")
