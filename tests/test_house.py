"""The house rules that a machine can keep: arrows run one way, imports stay light, everything is documented."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from faults import FAULTS, OF_COPIES

from kvtrail.connector.settings import Settings
from kvtrail.tracer.events import semconv
from kvtrail.tracer.rules import pages

ROOT = Path(__file__).parents[1]
PACKAGES = ("connector", "tracer", "dashboard")
SOURCES = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
MAY_IMPORT = {"tracer": {"tracer"}, "connector": {"connector", "tracer"}, "dashboard": {"dashboard", "tracer"}}
ROOMS = {
    "tracer": [
        "events", "model", "ingest", "ledger", "causes", "rules", "detect", "savings", "capacity", "liveness", "store",
        "history", "serve", "reports", "commands",
    ],
    "connector": [
        "settings", "kv_layout", "recording", "offload", "known", "vllm_version", "fingerprints", "tracing", "faults",
        "registration", "simulate", "demo", "commands",
    ],
    "dashboard": ["client", "palette", "glossary", "content", "command", "scripts", "live", "table", "views"],
}  # fmt: skip
"""A room may import those before it. The OffloadConnector (`offload`) knows nothing of how it is traced."""
PURE = ["events", "model", "causes", "ledger", "rules", "detect", "savings", "capacity", "liveness"]
WRITTEN = (".py", ".md", ".toml", ".yml", ".yaml", ".json", ".js", ".html", ".css", ".txt")
UNWRITTEN = {
    ".git", ".venv", ".cache", ".demo", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "__pycache__", "build",
    "dist", "test-artifacts", "kvtrail-check", "kvtrail-conformance",
}  # fmt: skip
SERVER_LIBRARIES = {"fastapi", "uvicorn", "grpc", "google", "prometheus_client", "opentelemetry", "sqlite3", "click"}


@cache
def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def test_packages_import_one_way() -> None:
    for path in SOURCES:
        ours = {name.split(".")[1] for name in imports_of(path) if name.startswith("kvtrail.")} & set(MAY_IMPORT)
        assert ours <= MAY_IMPORT[path.relative_to(ROOT).parts[0]], path


def test_a_room_imports_only_the_rooms_before_it() -> None:
    for path in SOURCES:
        package, room, *_ = path.relative_to(ROOT).with_suffix("").parts
        order = ROOMS.get(package, [])
        if room in order:
            imported = {name.split(".")[2] for name in imports_of(path) if name.startswith(f"kvtrail.{package}.")}
            later = imported & set(order[order.index(room) + 1 :])
            assert not later, f"{path} imports {later}, which come after {room}"


def test_the_dashboard_imports_only_the_vocabulary_of_the_tracer() -> None:
    for path in (ROOT / "dashboard").rglob("*.py"):
        imported = {name.split(".")[2] for name in imports_of(path) if name.startswith("kvtrail.tracer.")}
        words = {"rules"} if path.name == "runbook.py" else set()  # the runbook of a rule is part of the rule's page
        assert imported <= {"events", "model"} | words, f"{path} imports {imported}"


def test_vocabulary_and_detector_are_pure() -> None:
    for room in PURE:
        for path in (ROOT / "tracer" / room).rglob("*.py"):
            foreign = {name.partition(".")[0] for name in imports_of(path)} & SERVER_LIBRARIES
            assert not foreign, f"{path} imports {foreign}"


def test_nothing_calls_the_folders_by_their_bare_names() -> None:
    """They are `kvtrail.connector`, `kvtrail.tracer`, `kvtrail.dashboard`: in code, commands, settings and documentation."""
    bare = "|".join(PACKAGES)
    inside = "|".join({path.stem for package in PACKAGES for path in (ROOT / package).iterdir()})
    called = re.compile(
        rf"^\W*(?:from|import) (?:{bare})[. ]|-m (?:{bare})\b|module_path\W+(?:{bare})\b|[`'\"](?:{bare})\.(?:{inside})\b",
        re.MULTILINE,
    )
    for name in PACKAGES:
        for text in (
            f'"kv_connector_module_path": "{name}"',
            f"`python -m {name}.x`",
            f"    from {name}.model import e",
        ):
            assert called.search(text)
    for path in written():
        text = path.read_text(encoding="utf-8")
        assert not (hit := called.search(text)), f"{path}: {hit and text[hit.start() : hit.end() + 40]!r}"


def written() -> Iterator[Path]:
    """The files that people write: code, documentation and settings."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in UNWRITTEN and not name.endswith(".egg-info")]
        for name in files:
            if name.endswith(WRITTEN) or "." not in name:
                yield Path(folder, name)


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        (
            "import kvtrail.connector.recording.recorder, kvtrail.connector.tracing.traced",
            ["vllm", "torch", "grpc", "fastapi", "streamlit"],
        ),
        (
            "import kvtrail.tracer.serve.server, kvtrail.tracer.commands.audit",
            ["vllm", "torch", "streamlit", "kvtrail.connector"],
        ),
        (
            "import kvtrail.tracer.commands.serve, kvtrail.tracer.commands.audit",
            ["fastapi", "uvicorn", "grpc", "sqlite3"],
        ),
        ("import kvtrail.__main__", ["vllm", "torch", "streamlit", "kvtrail.connector", "fastapi", "grpc"]),
        ("import kvtrail.connector.simulate.conformance.page", ["vllm", "torch", "streamlit", "fastapi"]),
        (
            "import kvtrail.connector.commands.replay, kvtrail.connector.commands.minimize",
            ["vllm", "torch", "fastapi", "grpc", "streamlit"],
        ),
        (
            "import kvtrail.dashboard.client, kvtrail.dashboard.content.request.charts, kvtrail.dashboard.live.view",
            ["vllm", "torch", "kvtrail.connector", "grpc", "fastapi", "streamlit"],
        ),
    ],
)
def test_imports_stay_light(statement: str, absent: list[str]) -> None:
    code = f"{statement}\nimport sys\nprint([m for m in {absent!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_rules_settings_and_faults_are_documented() -> None:
    rules = (ROOT / "docs" / "rules.md").read_text()
    assert rules.startswith(runpy.run_path(str(ROOT / "docs" / "rule_pages.py"))["rules_page"]())
    settings = (ROOT / "docs" / "settings.md").read_text()
    for rule in pages.files():
        assert f"## `{rule}`" in rules
    for field in fields(Settings):
        assert f"`{field.name}`" in settings
    for key in ("chunk_size", "cpu_bytes_to_use"):
        assert f"`{key}`" in settings
    for fault in FAULTS:
        assert f"`{fault}`" in rules
    check = (ROOT / "docs" / "check.md").read_text()
    for fault in OF_COPIES:
        assert f"`{fault}`" in check


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
