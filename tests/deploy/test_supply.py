"""What kvtrail is made of: the bill in the wheel, the sdist, the check of vulnerabilities, and locked requirements."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packages import built

from kvtrail import __version__

ROOT = Path(__file__).parents[2]
SUPPLY = ROOT / "deploy" / "supply"
LEFT = {
    ".git", ".venv", ".cache", ".demo", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "__pycache__", "build",
    "dist", "test-artifacts", "kvtrail-check", "kvtrail.egg-info",
}  # fmt: skip
"""What is no part of a checkout."""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an sdist of this checkout, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=shutil.ignore_patterns(*LEFT))
    with tarfile.open(built(folder / "source", folder, "sdist")) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"kvtrail-{__version__}"


@pytest.fixture(scope="module")
def bill(wheel: Path) -> Any:
    return json.loads(zipfile.ZipFile(wheel).read(f"kvtrail-{__version__}.dist-info/sboms/kvtrail.cdx.json"))


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_wheel_has_a_bill_of_what_it_asks_for(bill: Any) -> None:
    """Every requirement of pyproject.toml but those of developers, in the version that is tested."""
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/kvtrail@{__version__}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: texts for name, texts in project["optional-dependencies"].items() if name != "dev"}
    asked = {
        plain(re.split(r"[^\w.-]", text)[0]) for texts in (project["dependencies"], *extras.values()) for text in texts
    }
    listed = {each["name"]: each for each in bill["components"]}
    assert set(listed) == asked
    tested = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    tested = {plain(name): version for name, version in tested.items()}
    for name, each in listed.items():
        assert each["version"] == tested[name]
        assert each["purl"] == each["bom-ref"] == f"pkg:pypi/{name}@{tested[name]}"
    required = {name for name, each in listed.items() if each["scope"] == "required"}
    assert required == {"click", "opentelemetry-api", "opentelemetry-sdk"}
    ((own, needs),) = [(each["ref"], each["dependsOn"]) for each in bill["dependencies"]]
    assert (own, set(needs)) == (f"pkg:pypi/kvtrail@{__version__}", {each["bom-ref"] for each in listed.values()})


def test_the_sdist_is_the_whole_checkout(unpacked: Path) -> None:
    for folder, folders, files in os.walk(ROOT, followlinks=True):
        folders[:] = [name for name in folders if name not in LEFT]
        for name in files:
            path = Path(folder, name).relative_to(ROOT)
            if path.suffix != ".pyc" and path.name not in (".git", ".env"):
                assert (unpacked / path).is_file(), path


@pytest.mark.long
def test_the_tests_pass_from_the_sdist(unpacked: Path) -> None:
    """Those of them that say most of a package: the house rules, and that streams of all versions are read."""
    tests = ["tests/golden/test_released.py", "tests/test_house.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(unpacked / "src")}
    run = subprocess.run(command, cwd=unpacked, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-5000:]
    assert re.search(r"\d+ passed", run.stdout)


@pytest.mark.long
def test_the_wheel_of_the_sdist_is_that_of_the_checkout(unpacked: Path, wheel: Path, tmp_path: Path) -> None:
    names = zipfile.ZipFile(built(unpacked, tmp_path, "wheel")).namelist()
    assert sorted(names) == sorted(zipfile.ZipFile(wheel).namelist())


SKIPPED = {"name": "a", "skip_reason": "Dependency not found on PyPI and could not be audited: a (1)"}
FINE: dict[str, Any] = {"name": "b", "version": "2", "vulns": []}
BAD = {
    "name": "c",
    "version": "3",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.1"], "aliases": [], "description": ""}],
}


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        (None, 3, "NOTHING WAS CHECKED"),
        ([], 3, "NOTHING WAS CHECKED"),
        ([SKIPPED], 3, "NOTHING WAS CHECKED"),
        ([SKIPPED, FINE], 0, "Not in the database, and not checked: a.\n1 packages were looked up; none of them"),
        ([FINE, BAD], 1, "c 3: PYSEC-1, fixed in 3.1\n2 packages were looked up; 1 of them"),
    ],
)
def test_what_could_not_be_looked_up_is_not_called_safe(found: list[Any] | None, code: int, said: str) -> None:
    report = "" if found is None else json.dumps({"dependencies": found, "fixes": []})
    run = subprocess.run(
        [sys.executable, SUPPLY / "audit.py"], input=report, capture_output=True, text=True, check=False
    )
    assert run.returncode == code, run.stderr
    assert said in run.stdout


def test_locked_requirements_have_hashes_and_no_hosts(wheel: Path) -> None:
    """Of pip's own report on a wheel that is at hand, under another name: kvtrail itself is left out."""
    options = ["--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-"]
    command = [sys.executable, "-m", "pip", "install", *options]
    report = subprocess.run([*command, str(wheel)], capture_output=True, text=True, check=True).stdout
    for name, expected in (("kvtrail", r""), ("another", rf"another=={__version__} --hash=sha256:[0-9a-f]{{64}}\n")):
        given = json.loads(report)
        given["install"][0]["metadata"]["name"] = name
        run = subprocess.run(
            [sys.executable, SUPPLY / "lock.py"], input=json.dumps(given), capture_output=True, text=True, check=True
        )
        assert re.fullmatch(expected, run.stdout), run.stdout
