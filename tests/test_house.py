"""The house rules that a machine can keep: arrows run one way, imports stay light, everything is documented."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from kvtrail.connector.settings import Settings
from kvtrail.connector.simulate.faults import FAULTS
from kvtrail.tracer.detect.rules import all_rules, as_markdown
from kvtrail.tracer.model import semconv

ROOT = Path(__file__).parents[1]
SOURCES = [path for room in ("connector", "tracer", "dashboard") for path in (ROOT / room).rglob("*.py")]
MAY_IMPORT = {"tracer": {"tracer"}, "connector": {"connector", "tracer"}, "dashboard": {"dashboard", "tracer"}}
PURE = [
    "semconv", "contract", "spans", "events", "decode", "books", "account", "engine", "ledger", "findings", "detect",
    "rules", "words", "cases", "hearing", "quick", "otlp_json", "efficiency", "steps", "worth", "phases", "gaps", "lanes",
    "transfers",
]  # fmt: skip
SERVER_LIBRARIES = {"fastapi", "uvicorn", "grpc", "google", "prometheus_client", "opentelemetry", "sqlite3", "click"}


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_arrows_run_one_way(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0]
    ours = {name.split(".")[1] for name in imports_of(path) if name.startswith("kvtrail.")} & set(MAY_IMPORT)
    assert ours <= MAY_IMPORT[room]


DRIVERS = {"drive", "check", "redrive", "rerun", "replay"}
"""Rooms of the connector that run vLLM, above all others."""


@pytest.mark.parametrize(
    "path",
    [p for p in SOURCES if not (p.is_relative_to(ROOT / "connector") and DRIVERS & set(p.parts))],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_nobody_but_the_drivers_looks_into_the_drivers_rooms(path: Path) -> None:
    rooms = tuple(f"kvtrail.connector.{room}" for room in DRIVERS)
    assert not any(name.startswith(rooms) for name in imports_of(path))


def test_vocabulary_ledger_and_rules_are_pure() -> None:
    for name in PURE:
        module = ROOT / "tracer" / name
        paths = list(module.rglob("*.py")) if module.is_dir() else [module.with_suffix(".py")]
        for path in paths:
            foreign = {name.partition(".")[0] for name in imports_of(path)} & SERVER_LIBRARIES
            assert not foreign, f"{path} imports {foreign}"


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        (
            "import kvtrail.connector.recording.recorder, kvtrail.connector.tracing.traced",
            ["vllm", "torch", "grpc", "fastapi", "streamlit"],
        ),
        (
            "import kvtrail.tracer.serve.server, kvtrail.tracer.commands.commands, kvtrail.tracer.replay.audit",
            ["vllm", "torch", "streamlit", "kvtrail.connector"],
        ),
        (
            "import kvtrail.tracer.commands.commands, kvtrail.tracer.replay.audit",
            ["fastapi", "uvicorn", "grpc", "sqlite3"],
        ),
        (
            "import kvtrail.tracer.commands.minimize",
            ["vllm", "torch", "streamlit", "kvtrail.connector", "fastapi", "grpc"],
        ),
        ("import kvtrail", ["vllm", "torch", "streamlit", "kvtrail.connector", "fastapi", "grpc"]),
        ("import kvtrail.connector.commands.replay", ["vllm", "torch", "fastapi", "streamlit"]),
        (
            "import kvtrail.dashboard.client, kvtrail.dashboard.figures",
            ["vllm", "torch", "kvtrail.connector", "grpc", "fastapi"],
        ),
    ],
)
def test_imports_stay_light(statement: str, absent: list[str]) -> None:
    code = f"{statement}\nimport sys\nprint([m for m in {absent!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_fit_in_the_head(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 330


def test_rules_settings_and_faults_are_documented() -> None:
    rules = (ROOT / "docs" / "rules.md").read_text()
    assert rules.startswith(as_markdown())
    settings = (ROOT / "docs" / "settings.md").read_text()
    for rule in all_rules():
        assert f"## `{rule.id}`" in rules
    for field in fields(Settings):
        assert f"`{field.name}`" in settings
    for key in ("chunk_size", "cpu_bytes_to_use"):
        assert f"`{key}`" in settings
    for fault in FAULTS:
        assert f"`{fault}`" in rules


def test_attribute_names_exist_once() -> None:
    names = "|".join(re.escape(each.key) for each in vars(semconv).values() if isinstance(each, semconv.Attribute))
    written = re.compile(rf"[\"'](?:{names})[\"']")
    for path in SOURCES:
        if path.name != "semconv.py":
            assert not written.search(path.read_text()), f"{path} spells an attribute's name out"


@pytest.mark.parametrize("path", ["constraints.txt", "tests/lmcaches/constraints.txt"])
def test_the_constraints_name_versions_and_no_addresses(path: str) -> None:
    lines = [line for line in (ROOT / path).read_text().splitlines() if line and not line.startswith("#")]
    assert lines
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
