"""Real LMCaches for tests: several versions side by side, none of them in the environment, each in processes of its own."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import forks
import processes
import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "tests" / "lmcaches"  # not "lmcache": tests are on the path, and must not be taken for it
PINS = [line for line in (PROGRAMS / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
DEPENDENCIES = tuple(pin for pin in PINS if not pin.startswith("lmcache=="))
INSTALLED = Path(
    os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache",
    "kvtrail-tests",
    hashlib.sha256(" ".join((sys.implementation.cache_tag or "", *PINS)).encode()).hexdigest()[:8],
)
"""What pip has unpacked, for all checkouts of this machine that have these pins."""
INSTALL_S = 500
SETTINGS = {
    "LMCACHE_CHUNK_SIZE": "256",
    "LMCACHE_SAVE_UNFULL_CHUNK": "False",
    "LMCACHE_LOCAL_CPU": "True",
    "LMCACHE_MAX_LOCAL_CPU_SIZE": "0.5",
    "LMCACHE_TRACK_USAGE": "false",
    "LMCACHE_LOG_LEVEL": "INFO",
    "PYTHONHASHSEED": "0",
}
ASYNCHRONOUS = {"lmcache.enable_async_loading": True}
"""The extra configuration of a connector that looks up and loads in threads of its own."""


Tally = Counter[tuple[str, str]]


@dataclass
class Run:
    """What an engine did: the tokens of each pass, or its last error; and what LMCache's worker logged that it moved."""

    tokens: list[dict[str, list[int]]] = field(default_factory=list)
    error: str = ""
    stored: int = 0
    loaded: int = 0


@pytest.fixture(scope="session")
def without_lmcache(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What an engine without any connector generates."""
    plain = run(tmp_path_factory.mktemp("plain"), None)
    assert plain.tokens[0] == plain.tokens[1]
    assert len({tuple(tokens) for tokens in plain.tokens[0].values()}) > 5, (
        "different prompts must give different tokens"
    )
    return plain


def folders(version: str) -> list[Path]:
    """Where this LMCache and its dependencies are. They are fetched once; if that fails, the test is skipped and says so."""
    assert f"lmcache=={version}" in PINS
    places = []
    for name, pins in ((f"lmcache-{version}", (f"lmcache=={version}",)), ("dependencies", DEPENDENCIES)):
        failed = fetch(name, pins)
        if failed:
            pytest.skip(f"LMCache {version} is not tested: pip cannot get {' '.join(pins)}: {failed}")
        places.append(INSTALLED / name)
    return places


@cache
def fetch(name: str, pins: tuple[str, ...]) -> str:
    """Install into a folder of the cache, whole or not at all, once for all processes; returns why it failed, if it did."""
    INSTALLED.mkdir(parents=True, exist_ok=True)
    with (INSTALLED / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _install(name, pins)


def _install(name: str, pins: tuple[str, ...]) -> str:
    place = INSTALLED / name
    if place.is_dir():
        return ""
    new = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=INSTALLED))
    command = [
        "install",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--retries",
        "1",
        "--target",
        str(new),
        *pins,
    ]
    try:
        pip = subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_S,
        )
        if pip.returncode != 0:
            return (pip.stderr.strip().splitlines() or [f"exit code {pip.returncode}"])[-1]
        new.rename(place)
    except subprocess.TimeoutExpired:
        return f"no answer within {INSTALL_S} s"
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return ""


@contextmanager
def server(folder: Path, version: str) -> Iterator[int]:
    """LMCache's own server, as it comes, on the CPU; its port."""
    port, log = processes.free_port(), folder / "lmcache-server.log"
    options = {
        "--host": "127.0.0.1",
        "--port": str(port),
        "--chunk-size": "256",
        "--l1-size-gb": "0.5",
        "--eviction-policy": "LRU",
        "--supported-transfer-mode": "engine_driven",
    }
    command = [sys.executable, "-m", "lmcache.v1.multiprocess.server", "--disable-metrics", *chain(*options.items())]
    environment = os.environ | SETTINGS | {"PYTHONPATH": os.pathsep.join(map(str, folders(version)))}
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    try:
        processes.until(
            lambda: process.poll() is not None or "cache server is running" in log.read_text(), why=log.read_text
        )
        assert process.poll() is None, log.read_text()
        yield port
    finally:
        process.kill()
        process.wait()


def run(
    folder: Path,
    version: str | None,
    *,
    grpc_port: int | None = None,
    passes: int = 2,
    mended: bool = False,
    server_port: int | None = None,
    probed: bool = True,
    seed: int = 0,
    **extra: Any,
) -> Run:
    """Run an engine in a process that ends without cleaning up; without a version, the engine has no connector. With the port
    of a server, it has the connector that talks to it; without `probed`, kvtrail's probe sees nothing. `seed` is the
    workload's."""
    environment = os.environ | SETTINGS
    connector: dict[str, Any] | None = None
    if version is not None:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, folders(version)))
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{grpc_port}"
        connector = {"kv_connector": "TracedLMCacheConnectorV1", "kv_connector_extra_config": extra}
        connector["kv_load_failure_policy"] = "recompute"
        if server_port is not None:
            connector["kv_connector"] = "TracedLMCacheMPConnector"
            extra |= {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": server_port}
    task = {"folder": str(folder / "model"), "connector": connector, "passes": passes, "mended": mended}
    task |= {"server": server_port is not None, "probed": probed, "seed": seed}
    process = forks.run([PROGRAMS / "engine.py", json.dumps(task)], environment=environment)
    said = process.stdout + process.stderr
    results = [line for line in process.stdout.splitlines() if line.startswith("{")]
    assert results, said[-8000:]
    return Run(
        **json.loads(results[-1]),
        stored=sum(map(int, re.findall(r"Stored (\d+) out of", said))),
        loaded=sum(map(int, re.findall(r"Retrieved (\d+) out of", said))),
    )


def causes(
    folder: Path, version: str, *, chunks: int, requests: int, blocks: int, seed: int, **extra: Any
) -> dict[str, Tally]:
    """Random prompts with an LMCache that has room for `chunks` chunks, and a vLLM of `blocks` blocks: tokens by the
    reference's cause and by what was said of them, for each thing that may be left out of a recording."""
    task = {"folder": str(folder / "model"), "chunks": chunks, "requests": requests, "blocks": blocks, "seed": seed}
    said = _ran("random_prompts.py", task | {"extra": extra, "sizes": [], "at_a_time": 64, "generate": 12}, version)[
        "said"
    ]
    return {
        missing: Counter({(cause, verdict): n for cause, verdict, n in reported}) for missing, reported in said.items()
    }


def capacity(folder: Path, version: str, *, chunks: int, sizes: Sequence[int], seed: int) -> dict[str, Any]:
    """The same prompts, few at a time, so that none is preempted: what the store has `given`, as a share of the tokens asked
    for, and what each of these sizes, in chunks, would have (`points`)."""
    task = {"folder": str(folder / "model"), "chunks": chunks, "sizes": list(sizes), "seed": seed, "extra": {}}
    return _ran("random_prompts.py", task | {"requests": 200, "blocks": 64, "at_a_time": 2, "generate": 3}, version)


def _ran(program: str, task: dict[str, Any], version: str) -> dict[str, Any]:
    """What a program prints at its end, as JSON, with this LMCache."""
    places = [*map(str, folders(version)), str(ROOT / "tests")]
    environment = os.environ | SETTINGS | {"PYTHONPATH": os.pathsep.join(places), "LMCACHE_LOG_LEVEL": "ERROR"}
    process = forks.run([PROGRAMS / program, json.dumps(task)], environment=environment)
    results = [line for line in process.stdout.splitlines() if line.startswith("{")]
    assert results, (process.stdout + process.stderr)[-8000:]
    ran: dict[str, Any] = json.loads(results[-1])
    return ran
