"""What a Python user would run instead to take OTLP in: mlflow and arize-phoenix, each from an environment of its own."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
from fleet import Payload
from sending import FIRST_PAUSE_S, HttpClient, Later

PORT = 24328
START_S = 180.0
MLFLOW_HEADERS = {"x-mlflow-experiment-id": "0"}


@contextmanager
def running(name: str, environment: Path, folder: Path) -> Iterator[tuple[HttpClient, Path]]:
    """The server of that name, from a virtual environment; gives a connection to it, and its SQLite file."""
    database = folder / f"{name}.db"
    binaries = environment / "bin"
    variables = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}"}
    headers: dict[str, str] = {}
    if name == "mlflow":
        command = [str(binaries / "mlflow"), "server", "--backend-store-uri", f"sqlite:///{database}", "--workers", "1"]
        command += ["--default-artifact-root", str(folder), "--host", "127.0.0.1", "--port", str(PORT)]
        headers = MLFLOW_HEADERS
    elif name == "phoenix":
        command = [str(binaries / "phoenix"), "serve"]
        variables |= {
            "PHOENIX_PORT": str(PORT), "PHOENIX_GRPC_PORT": str(PORT + 1), "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_WORKING_DIR": str(folder), "PHOENIX_SQL_DATABASE_URL": f"sqlite:///{database}",
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }  # fmt: skip
    else:
        raise ValueError(f"{name!r}: only mlflow and phoenix are known")
    log = folder / f"{name}.log"
    with log.open("wb") as file:
        server = subprocess.Popen(command, env=variables, stdout=file, stderr=file, cwd=folder)
    try:
        deadline_s = time.monotonic() + START_S
        while not _answers():
            assert server.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline_s, f"{name} does not answer"
            time.sleep(0.2)
        yield HttpClient(PORT, headers), database
    finally:
        server.terminate()
        server.wait()


def _answers() -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{PORT}/", trust_env=False).is_success
    except httpx.TransportError:
        return False


def rate(client: HttpClient, payloads: Sequence[Payload], database: Path | None) -> float:
    """Spans a second until all are stored: acknowledged, and in the table `spans` of a database."""
    count = sum(payload.spans for payload in payloads)
    began_s = time.monotonic()
    for payload in payloads:
        while True:
            try:
                client.send(payload.body)
                break
            except Later as later:
                time.sleep(later.after_s or FIRST_PAUSE_S)
    while database is not None and _stored(database) < count:
        time.sleep(0.2)
    return count / (time.monotonic() - began_s)


def _stored(database: Path) -> int:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=START_S)) as connection:
        return int(connection.execute("SELECT count(*) FROM spans").fetchone()[0])
