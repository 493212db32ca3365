"""The real Prometheus and Alertmanager, over real demos and a real scheduler."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import forks
import httpx
import served_engine
import yaml
from processes import SLOW_S, free_port, until

ROOT = Path(__file__).parents[1]
RULES = ROOT / "deploy" / "prometheus" / "kvtrail.rules.yml"
DASHBOARD = "http://localhost:8501"
"""The dashboard's address in everything that is shipped; people change it by replacing this text."""
SCRAPE = "2s"
SHORTER = {"15m": "8s", "5m": "5s", "6h": "30s", "10m": "1s", "30m": "1s", "1m": "1s"}
"""What the rules' times are for a test that cannot wait."""


def programs() -> tuple[str, str] | None:
    """Prometheus and Alertmanager, as Debian or as their makers name them; None where one is not installed."""
    alertmanager = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    prometheus = shutil.which("prometheus")
    return (prometheus, alertmanager) if prometheus and alertmanager else None


class Loading:
    """The process of `served_engine.py`."""

    def __init__(self, folder: Path, grpc_port: int, port: int) -> None:
        self.port = port
        self._log = folder / "engine.log"
        self._pipe, its = Pipe()
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{grpc_port}"}
        self._process = forks.start(served_engine.serve, folder, self.port, its, environment=environment, out=self._log)
        its.close()

    def serve(self) -> None:
        """Another round of requests; counters move only when there are several."""
        self._pipe.send("a round")
        assert self._pipe.poll(SLOW_S), self._log.read_text()[-4000:]
        assert self._pipe.recv() == "served"

    def end(self) -> None:
        self._pipe.close()
        self._process.join()


@contextmanager
def loading(folder: Path, grpc_port: int, port: int) -> Iterator[Loading]:
    """The scheduler, which sends spans to this port and serves vLLM's own metrics on that one."""
    engine = Loading(folder, grpc_port, port)
    try:
        yield engine
    finally:
        engine.end()


class Webhook:
    """A webhook that Alertmanager notifies."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                received.extend(json.loads(body)["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/"

    def heard(self, alert: str, status: str, **labels: str) -> list[dict[str, Any]]:
        """The notifications of an alert."""
        return [
            each
            for each in self.received
            if each["labels"]["alertname"] == alert
            and each["status"] == status
            and labels.items() <= each["labels"].items()
        ]


class Prometheus:
    """Its HTTP api, and the file of the sidecars that it scrapes: one that is not there yet would be an alert."""

    def __init__(self, port: int, sidecars: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._sidecars = sidecars
        self._client = httpx.Client(timeout=SLOW_S)

    def get(self, path: str, **params: str | float) -> Any:
        answer = self._client.get(f"{self.url}/api/v1/{path}", params=params).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def scrape(self, http_port: int) -> None:
        """Scrape this sidecar, too."""
        listed = json.loads(self._sidecars.read_text())
        self._sidecars.write_text(json.dumps([*listed, {"targets": [f"127.0.0.1:{http_port}"]}]))

    def has_seen(self, loading: Loading) -> bool:
        """Whether it has seen the counters that only asynchronous loads move; another round is served if not."""
        series = f"duration_seconds_count{{engine='{served_engine.ENGINE}'}}"
        if all(
            self.get("query", query=f"rate(kvtrail_{name}_{series}[10s]) > 0")["result"] for name in ("wait", "load")
        ):
            return True
        loading.serve()
        return False


@contextmanager
def running(folder: Path, engines: list[int], webhook: Webhook) -> Iterator[Prometheus]:
    """Prometheus with the rules of `deploy/`, made quick, and Alertmanager with the routes of `deploy/`; the numbers are the
    ports of the engines' own metrics."""
    prometheus, alertmanager = programs() or ("", "")
    ports = {"prometheus": free_port(), "alertmanager": free_port()}
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": SCRAPE}
    config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{ports['alertmanager']}"]
    of_sidecars, of_engines = config["scrape_configs"]
    del of_sidecars["static_configs"]
    of_sidecars["file_sd_configs"] = [{"files": [str(folder / "sidecars.json")], "refresh_interval": "1s"}]
    (folder / "sidecars.json").write_text("[]")
    of_engines["static_configs"][0]["targets"] = [f"127.0.0.1:{port}" for port in engines]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (folder / "kvtrail.rules.yml").write_text(quick(RULES.read_text()))
    routes = yaml.safe_load((ROOT / "deploy/alertmanager/alertmanager.yml").read_text())
    routes["route"].update(group_wait="0s", group_interval="1s")
    routes["receivers"][0]["webhook_configs"][0]["url"] = webhook.url
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(routes))
    with ExitStack() as started:
        started.callback(webhook.server.shutdown)
        for command in (
            [
                alertmanager, f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/alertmanager",
                f"--web.listen-address=127.0.0.1:{ports['alertmanager']}", "--cluster.listen-address=",
            ],
            [
                prometheus, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
                f"--web.listen-address=127.0.0.1:{ports['prometheus']}", "--enable-feature=exemplar-storage",
                "--rules.alert.resend-delay=1s",
            ],
        ):  # fmt: skip
            log = started.enter_context((folder / f"{Path(command[0]).name}.log").open("wb"))
            process = subprocess.Popen(command, stdout=log, stderr=log)
            started.callback(_end, process)
        api = Prometheus(ports["prometheus"], folder / "sidecars.json")
        until(lambda: _ready(api.url), why=lambda: (folder / "prometheus.log").read_text()[-2000:])
        yield api


def quick(rules: str) -> str:
    """The rules with short times."""

    def shorter(match: re.Match[str]) -> str:
        return match[1] + SHORTER[match[2]]

    return re.sub(r"(\[|offset |for: )(15m|5m|6h|10m|30m|1m)\b", shorter, rules)


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=10, verify=False).is_success
    except httpx.TransportError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(SLOW_S)
