"""`pytest --kv-connector`: a test for each requirement, decided by the suite's report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import forks
import pytest
from conformance_reports import failure, report, requirement

from kvtrail.connector.simulate.conformance.requirements import of_level

PLUGIN = ("-p", "no:kvtrail", "-p", "kvtrail.connector.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:xdist")
"""By its module, since the kvtrail that is installed may be another."""
OF_REPORT = """
import json
from kvtrail.connector import pytest_plugin

def run(suite):
    suite.report = json.loads({report!r})
    suite.refused = {refused!r}

pytest_plugin.Suite.run = run
"""
FAULTY = '''
from my_connector import MyConnector

class Faulty(MyConnector):
    """Offers a block more than host memory holds."""

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        tokens, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return tokens + self.block_size, is_async
'''
UNSHRUNK = """
from functools import partial
from kvtrail.connector.simulate.conformance import suite

suite.run = partial(suite.run, shrink_tries=0)
"""
"""To shrink takes most of the time, and has its own tests."""
DOCS = Path(__file__).parents[4] / "docs" / "conformance"


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Without vLLM's help: it is not imported before the suite runs."""
    command = [sys.executable, "-m", "pytest", *PLUGIN, "-rA", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)


def with_report(folder: Path, refused: str | None = None, **more: object) -> Path:
    asked = [requirement(each.id, "passed") for each in of_level("core")]
    made = None if refused else report(**{"requirements": asked, "failures": [], "verdict": "passed", **more})
    (folder / "conftest.py").write_text(OF_REPORT.format(report=json.dumps(made), refused=refused))
    return folder


def test_without_the_option_it_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(
        "import sys\n\n"
        "def test_nothing_is_imported():\n"
        "    assert not {'vllm', 'torch', 'kvtrail.tracer', 'opentelemetry'} & {*sys.modules}\n"
    )
    ran = run_pytest(tmp_path)
    assert ran.returncode == 0, ran.stdout
    assert "1 passed" in ran.stdout


def test_a_test_for_each_requirement(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, "--kv-connector", "my:Own", "--collect-only", "-q")
    assert ran.returncode == 0, ran.stdout
    listed = [line for line in ran.stdout.splitlines() if line.startswith("my:Own::")]
    assert listed == [*(f"my:Own::{each.id}" for each in of_level("core")), "my:Own::verdict"]
    chosen = run_pytest(tmp_path, "--kv-connector", "my:Own", "--collect-only", "-q", "-k", "core.reset")
    assert {line.split("::")[1].split(".")[1] for line in chosen.stdout.splitlines() if "::" in line} == {"reset"}


def test_own_tests_run_where_they_are_named(tmp_path: Path) -> None:
    with_report(tmp_path)
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")
    assert "test_own.py" not in run_pytest(tmp_path, "--kv-connector", "my:Own").stdout
    assert "PASSED test_own.py::test_own" in run_pytest(tmp_path, "test_own.py", "--kv-connector", "my:Own").stdout


def test_the_report_decides_each_test(tmp_path: Path) -> None:
    passed, failed, skipped, *rest = (each.id for each in of_level("core"))
    asked = [
        requirement(passed, "passed"),
        requirement(failed, "failed"),
        requirement(skipped, "not exercised"),
        *(requirement(each, "passed") for each in rest),
    ]
    with_report(tmp_path, requirements=asked, failures=report()["failures"], verdict="failed")
    ran = run_pytest(tmp_path, "--kv-connector", "my:Own")
    assert ran.returncode == 1
    assert f"PASSED my:Own::{passed}" in ran.stdout
    assert f"FAILED my:Own::{failed}" in ran.stdout
    assert "max(0, 256 - 288) = 0" in ran.stdout
    assert "--profile retry --seed 7" in ran.stdout
    assert "not exercised: it was never reached" in ran.stdout
    assert f"1 failed, {len(rest) + 2} passed, 1 skipped" in ran.stdout
    assert "pytest_plugin.py" not in ran.stdout[ran.stdout.index("= FAILURES") : ran.stdout.index("= PASSES")]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"verdict": "inconclusive", "inconclusive": ["None of 9 lookups hit."]}, "None of 9 lookups hit."),
        ({"refused": "my:Own cannot be run: no such module"}, "my:Own cannot be run: no such module"),
    ],
)
def test_what_proves_nothing_is_no_success(more: dict[str, object], said: str, tmp_path: Path) -> None:
    with_report(tmp_path, **more)  # type: ignore[arg-type]
    ran = run_pytest(tmp_path, "--kv-connector", "my:Own")
    assert ran.returncode == 1
    assert said in ran.stdout
    assert "FAILED my:Own::verdict" in ran.stdout


def test_a_failure_of_another_level_is_no_success(tmp_path: Path) -> None:
    other = requirement("extended.async-loads.once", "failed", feature="asynchronous loads")
    asked = [*(requirement(each.id, "passed") for each in of_level("core")), other]
    broken = failure(requirements=[other["id"]])
    with_report(tmp_path, requirements=asked, failures=[broken], verdict="failed")
    ran = run_pytest(tmp_path, "--kv-connector", "my:Own")
    assert ran.returncode == 1
    assert f"1 failed, {len(of_level('core'))} passed" in ran.stdout
    assert "FAILED my:Own::verdict" in ran.stdout
    assert broken["text"] in ran.stdout


@pytest.mark.long
def test_a_connector_with_a_bug_fails_and_the_report_is_written(tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="the vLLM side needs vLLM")
    (tmp_path / "mine.py").write_text(FAULTY)
    (tmp_path / "conftest.py").write_text(UNSHRUNK)
    options = ["--kv-connector", "mine:Faulty", "--kv-conformance-steps", "50", "--kv-conformance-out", "out"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(DOCS)])}
    ran = forks.run(["-m", "pytest", *PLUGIN, "-q", *options], environment=environment, folder=tmp_path)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "FAILED mine:Faulty::core.lookup.only-stored" in ran.stdout
    assert f"The report: {Path('out', 'index.html')}" in ran.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"index.html", "report.json"}
