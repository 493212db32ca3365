"""The container images, Compose, Kubernetes and systemd: as far as they can be checked where none of these runs."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from kvtrail.__main__ import main
from kvtrail.tracer.store.clickhouse.connection import Address

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted(DEPLOY.rglob("*Dockerfile"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yml").read_text())
OF_OPERATORS = {"ServiceMonitor"}
"""Kinds whose schema Kubernetes does not have."""


def manifests() -> Iterator[Any]:
    for path in MANIFESTS:
        yield from yaml.safe_load_all(path.read_text())


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def accepted(command: str, arguments: list[str]) -> None:
    """Fails if a command does not take these arguments."""
    context = click.Context(main)
    found = main.get_command(context, command)  # type: ignore[attr-defined]
    assert found is not None
    found.make_context(command, list(arguments), parent=context, resilient_parsing=True)
    known = {option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {each for each in arguments if each.startswith("--")} <= known


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_dockerfiles_are_sound(path: Path) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint
    done = subprocess.run([hadolint, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_an_image_is_built_from_what_the_context_holds(tmp_path: Path) -> None:
    """`.dockerignore` lets through what a wheel needs, and no more."""
    names = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for name in names:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source, tmp_path / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, tmp_path / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "out"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "out").iterdir()
    packed = zipfile.ZipFile(wheel).namelist()
    for part in ("tracer/serve/server.py", "connector/registration.py", "dashboard/app.py"):
        assert f"kvtrail/{part}" in packed


@pytest.mark.parametrize("manifest", manifests(), ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_manifests_fit_their_schema(manifest: dict[str, Any]) -> None:
    if manifest["kind"] not in OF_OPERATORS:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_the_pods_are_as_the_commands_are() -> None:
    """Their arguments are options, their probes and ports are there, and what they mount is a volume of theirs."""
    pods = [each["spec"]["template"]["spec"] for each in manifests() if each["kind"] == "Deployment"]
    ours = {container["name"]: container for pod in pods for container in containers(pod)}
    accepted("serve", ours["kvtrail"]["args"])
    accepted("dashboard", ours["dashboard"]["args"])
    assert ours["kvtrail"]["restartPolicy"] == "Always", "a native sidecar"
    for pod in pods:
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in containers(pod):
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes
            ports = {port["name"] for port in container["ports"]}
            probes = [value for key, value in container.items() if key.endswith("Probe")]
            assert probes
            assert {probe["httpGet"]["port"] for probe in probes} <= ports
    for name in ("kvtrail", "dashboard"):
        context = ours[name]["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert context["runAsNonRoot"]


def test_the_services_choose_pods_that_are_there() -> None:
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in manifests() if each["kind"] == "Deployment"]
    for manifest in manifests():
        chosen = {
            "Service": lambda spec: spec["selector"],
            "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
            "ServiceMonitor": lambda spec: spec["selector"]["matchLabels"],
        }.get(manifest["kind"])
        if chosen is not None:
            assert chosen(manifest["spec"]) in labels


def test_compose_is_as_the_commands_are() -> None:
    services = COMPOSE["services"]
    accepted("serve", services["kvtrail"]["command"])
    accepted("dashboard", services["dashboard"]["command"])
    for service in services.values():
        assert set(service.get("secrets", ())) <= COMPOSE["secrets"].keys()
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / "compose" / source).exists()


def test_composes_sidecar_and_grafana_use_its_clickhouse() -> None:
    services, password = COMPOSE["services"], "${KVTRAIL_CLICKHOUSE_PASSWORD"
    store = services["kvtrail"]["environment"]["KVTRAIL_SERVE_STORE"]
    assert password in store
    address = Address.of(store.replace(":?see the top of compose.yml", ""))
    assert str(address) == "clickhouse://clickhouse:8123/kvtrail"
    server = services["clickhouse"]["environment"]
    assert (server["CLICKHOUSE_USER"], server["CLICKHOUSE_DB"]) == ("kvtrail", address.database)
    assert password in server["CLICKHOUSE_PASSWORD"]
    _, command, *arguments = services["kvtrail"]["entrypoint"]
    accepted(command, arguments)
    (source,) = yaml.safe_load((DEPLOY / "compose" / "grafana-clickhouse.yml").read_text())["datasources"]
    assert (source["jsonData"]["host"], source["jsonData"]["port"]) == ("clickhouse", 8123)
    assert source["jsonData"]["defaultDatabase"] == address.database
    assert source["secureJsonData"]["password"] == "$KVTRAIL_CLICKHOUSE_PASSWORD"
    assert "KVTRAIL_CLICKHOUSE_PASSWORD" in services["grafana"]["environment"]
    assert ",clickhouse]" in (DEPLOY / "container" / "Dockerfile").read_text()


def test_what_compose_changes_of_other_files_is_the_names_alone() -> None:
    plain = (DEPLOY / "grafana" / "provisioning" / "datasources" / "kvtrail.yml").read_text()
    theirs = (DEPLOY / "compose" / "grafana-datasource.yml").read_text()
    assert theirs == plain.replace("http://localhost:9090", "http://prometheus:9090")
    jobs = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())["scrape_configs"]
    plain_jobs = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    assert [job["job_name"] for job in jobs] == [job["job_name"] for job in plain_jobs]


def test_the_unit_is_as_the_command_is() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd" / "kvtrail.service")
    _, command, *arguments = unit["Service"]["ExecStart"].split()
    accepted(command, arguments)
    assert "HUP" in unit["Service"]["ExecReload"]


def test_the_dockerfile_starts_what_is_there() -> None:
    text = (DEPLOY / "container" / "Dockerfile").read_text()
    entries = [
        yaml.safe_load(line.partition(" ")[2]) for line in text.splitlines() if line.startswith(("ENTRYPOINT", "CMD"))
    ]
    (dashboard, sidecar, arguments) = entries
    accepted("dashboard", dashboard[2:])
    accepted("serve", [*sidecar[2:], *arguments])
