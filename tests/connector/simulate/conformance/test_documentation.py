"""docs/check.md and what it offers to copy say what is so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import yaml

from kvtrail.__main__ import main

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
GITHUB = ROOT / "deploy" / "github"


def conformance_arguments(line: str) -> list[str]:
    """What a shell passes to `kvtrail conformance`."""
    words = shlex.split(line.partition(" | ")[0])
    assert words[:2] == ["kvtrail", "conformance"]
    return words[2:]


def parsed(line: str) -> dict[str, Any]:
    """The parameters with which the command would run."""
    command = main.get_command(click.Context(main), "conformance")  # type: ignore[attr-defined]
    assert command is not None
    parameters: dict[str, Any] = command.make_context("conformance", conformance_arguments(line)).params
    return parameters


def test_the_workflow_runs_the_suite_for_each_vllm_and_keeps_the_page() -> None:
    workflow = yaml.safe_load((GITHUB / "kv-connector-conformance.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["conformance"]
    steps = job["steps"]
    assert steps[0]["uses"].startswith("actions/checkout@")
    (install,) = [step["run"] for step in steps if "pip install" in step.get("run", "")]
    assert '"vllm==${{ matrix.vllm }}"' in install
    assert len(job["strategy"]["matrix"]["vllm"]) > 1
    (suite,) = [step for step in steps if "kvtrail conformance" in step.get("run", "")]
    assert suite["shell"] == "bash", "a failure must not be lost in the pipe"
    asked = parsed(suite["run"])
    assert (asked["connector"], asked["level"]) == ("$CONNECTOR", "all")
    assert workflow["env"].keys() == {"CONNECTOR"}
    (kept,) = [step for step in steps if step.get("uses", "").startswith("actions/upload-artifact@")]
    assert kept["if"] == "always()"
    assert Path(kept["with"]["path"]) == asked["out"]


def test_the_hook_runs_core() -> None:
    (repository,) = yaml.safe_load((GITHUB / "pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    (hook,) = repository["hooks"]
    assert parsed(hook["entry"])["level"] == "core"
    assert hook["pass_filenames"] is False, "their names would be taken for connectors"


def test_the_command_of_each_page_can_be_run() -> None:
    lines = re.findall(r"^ *(kvtrail conformance .*)$", PAGE, re.MULTILINE)
    assert lines
    for line in lines:
        assert ":" in parsed(line)["connector"], line
