"""A fleet at full load: how many spans a second the sidecar takes, what each costs it, and whether it finds what is planted.

The engines of `fleet.py` send over loopback from this process; drift is planted in them, and in the end the api must have all
of it and nothing else, also when the sidecar is killed now and then. Nothing acknowledged may be missing.

    python benchmarks/load.py                            as fast as it goes, for a minute, over gRPC
    python benchmarks/load.py --rate 40000 --seconds 30  at this rate; shows how soon a finding can be read
    python benchmarks/load.py --kill-every 7             kill -9 and restart every seven seconds
    python benchmarks/load.py --protocol http --peer mlflow=VENV --peer phoenix=VENV
"""

from __future__ import annotations

import argparse
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import peers
import psutil
from fleet import Engine, Finding
from sending import Client, GrpcClient, HttpClient, Sender, Sent

MAX_FINDINGS = 10_000
"""What the api lists at once."""
SAMPLE_S = 0.5
PROBE_S = 0.5
"""How often it is measured when a finding can be read."""
GONE_S = 120.0
MIB = 2**20
PEERS_PAYLOADS = 26
"""Requests that each receiver gets where several are compared: what a slow one takes in a minute or two."""


@dataclass
class Usage:
    """What a process has used so far: seconds of a processor, and bytes of memory now and at most."""

    cpu_s: float = 0.0
    rss: int = 0
    most_rss: int = 0


class Sidecar:
    """A `kvtrail serve` process, which can be killed and started again on its store and ports."""

    def __init__(self, folder: Path, grpc_port: int, http_port: int, *options: str) -> None:
        self.folder, self.grpc_port, self.http_port = folder, grpc_port, http_port
        self.url = f"http://127.0.0.1:{http_port}"
        self.log = folder.parent / f"{folder.name}.log"
        self._options = options
        self._before_s = self._last_s = 0.0
        self._most_rss = 0
        self.start()

    def start(self) -> None:
        """Returns when it answers."""
        ports = ["--grpc-port", str(self.grpc_port), "--http-port", str(self.http_port)]
        store = ["--store", str(self.folder / "kvtrail.db")]
        command = [sys.executable, "-m", "kvtrail", "serve", *store, *ports, *self._options]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._about = psutil.Process(self._process.pid)
        while not self._answers():
            assert self._process.poll() is None, self.log.read_text()
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", trust_env=False).is_success
        except httpx.TransportError:
            return False

    def usage(self) -> Usage:
        """Of all its lives."""
        times, rss = self._about.cpu_times(), int(self._about.memory_info().rss)
        self._last_s = times.user + times.system
        self._most_rss = max(self._most_rss, rss)
        return Usage(self._before_s + self._last_s, rss, self._most_rss)

    def stored(self) -> int:
        """Bytes of its store."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def kill(self) -> None:
        """`kill -9`."""
        self.usage()
        self._before_s += self._last_s
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


@dataclass
class Latencies:
    """Seconds from the acknowledgement of a finding's last event until it can be read."""

    api: list[float] = field(default_factory=list)
    metrics: list[float] = field(default_factory=list)


class Watch(threading.Thread):
    """Looks, while spans are sent, when the finding that was acknowledged last can be read."""

    def __init__(self, url: str, senders: Sequence[Sender], ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self.latencies = Latencies()
        self._api = httpx.Client(base_url=url, trust_env=False, timeout=GONE_S)
        self._senders, self._ended = senders, ended

    def run(self) -> None:
        seen = None
        while not self._ended.wait(PROBE_S):
            latest = max((each.sent.acknowledged[-1] for each in self._senders if each.sent.acknowledged), default=None,
                         key=lambda reported: reported[1])  # fmt: skip
            if latest is None or latest == seen:
                continue
            seen = latest
            (_, request), at_s = latest
            try:
                while not self._api.get("/api/findings", params={"request": request}).json():
                    time.sleep(0.01)
                self.latencies.api.append(time.monotonic() - at_s)
                counted, at_s = sum(len(each.sent.acknowledged) for each in self._senders), time.monotonic()
                while findings_counted(self._api.get("/metrics").text) < counted:
                    time.sleep(0.01)
                self.latencies.metrics.append(time.monotonic() - at_s)
            except httpx.TransportError:  # it was killed
                continue


def findings_counted(page: str) -> int:
    """How many findings a page of metrics has counted."""
    return int(sum(float(number) for number in re.findall(r"^kvtrail_findings_total\{.*\} (\S+)", page, re.MULTILINE)))


class Load:
    """Senders at work on a receiver, until `until_s` by the monotonic clock."""

    def __init__(self, clients: Sequence[Client], engines: Sequence[Engine], *, rate: float, until_s: float) -> None:
        """`rate`: spans a second of all together; 0 for as many as go."""
        self.senders = [
            Sender(client, engines[number :: len(clients)], rate=rate / len(clients), until_s=until_s)
            for number, client in enumerate(clients)
        ]
        self.began_s, self._began_cpu_s = time.monotonic(), time.process_time()
        for sender in self.senders:
            sender.start()

    @property
    def is_going(self) -> bool:
        return any(sender.is_alive() for sender in self.senders)

    @property
    def spans(self) -> int:
        return sum(sender.sent.spans for sender in self.senders)

    def end(self) -> Sent:
        """What was acknowledged in all. Raises what a sender has raised."""
        for sender in self.senders:
            sender.join()
            if sender.failure is not None:
                raise sender.failure
        self.took_s = time.monotonic() - self.began_s
        self.cpu_s = time.process_time() - self._began_cpu_s
        every = [sender.sent for sender in self.senders]
        return Sent(
            spans=sum(each.spans for each in every),
            requests=sum(each.requests for each in every),
            bytes=sum(each.bytes for each in every),
            retries=sum(each.retries for each in every),
            acknowledged=[reported for each in every for reported in each.acknowledged],
        )


def run(options: argparse.Namespace, sidecar: Sidecar) -> int:
    """Load the sidecar, print what it took, and compare what it found. Returns the exit code."""
    engines = [Engine(f"engine-{number}", options.drift_every) for number in range(options.engines)]
    load = Load(clients(options, sidecar), engines, rate=options.rate, until_s=time.monotonic() + options.seconds)
    used, ended = sidecar.usage(), threading.Event()
    watch = Watch(sidecar.url, load.senders, ended)
    if not options.kill_every:  # the counters restart then
        watch.start()
    kills, kill_s = 0, time.monotonic() + options.kill_every
    while load.is_going:
        time.sleep(SAMPLE_S)
        sidecar.usage()
        if options.kill_every and time.monotonic() > kill_s:
            sidecar.kill()
            kills += 1
            sidecar.start()
            kill_s = time.monotonic() + options.kill_every
    sent, after = load.end(), sidecar.usage()
    ended.set()
    cost_us = (after.cpu_s - used.cpu_s) / sent.spans * 1e6
    print(
        f"{options.protocol}: {sent.spans:,} spans of {options.engines} engines in {load.took_s:.1f} s:"
        f" {sent.spans / load.took_s:,.0f} spans/s; {cost_us:.1f} us of a processor for a span, and"
        f" {load.cpu_s / sent.spans * 1e6:.1f} us for making and sending it"
    )
    print(
        f"  memory at most {after.most_rss / MIB:,.0f} MiB; on disk {sidecar.stored() / sent.spans:.0f} of"
        f" {sent.bytes / sent.spans:.0f} bytes a span; {sent.retries} sent again, {kills} times killed"
    )
    for what, seconds in (("api", watch.latencies.api), ("/metrics", watch.latencies.metrics)):
        if len(seconds) > 1:
            p50, p99 = statistics.median(seconds), statistics.quantiles(seconds, n=100, method="inclusive")[98]
            print(f"  a finding is in {what} after {1e3 * p50:.0f} ms (p99 {1e3 * p99:.0f} ms, {len(seconds)} looks)")
    faults = settled(sidecar.url, sent, engines)
    print("  " + ("; ".join(faults) or f"all {len(sent.acknowledged)} planted findings were found, and nothing else"))
    return int(bool(faults))


def settled(url: str, sent: Sent, engines: Sequence[Engine]) -> list[str]:
    """What the api still says otherwise than it should when it has had time for it: after a start it reads back what it knew,
    and who asks does not wait for rows that are still to be written."""
    until_s = time.monotonic() + GONE_S
    while (faults := verify(url, sent, engines)) and time.monotonic() < until_s:
        time.sleep(SAMPLE_S)
    return faults


def verify(url: str, sent: Sent, engines: Sequence[Engine]) -> list[str]:
    """What the api says otherwise than it should; nothing if all is well."""
    with httpx.Client(base_url=url, trust_env=False, timeout=GONE_S) as api:
        while api.get("/api/health").json()["spans_behind"]:
            time.sleep(SAMPLE_S)
        planted = {finding for finding, _ in sent.acknowledged}
        found: set[Finding] = set()
        for engine in engines:
            asked: dict[str, Any] = {"engine": engine.name, "limit": MAX_FINDINGS}
            found |= {(each["rule"], each["request"]) for each in api.get("/api/findings", params=asked).json()}
        totals = api.get("/api/totals").json()
        incomplete = api.get("/api/requests", params={"verdict": "unknown", "limit": 1}).json()
        missing = api.get("/api/health").json()["events_missing"]
    faults = {
        f"{len(planted - found)} planted findings were not found": planted - found,
        f"{len(found - planted)} findings were not planted, such as {sorted(found - planted)[:1]}": found - planted,
        f"{totals['requests']} of {sent.requests} requests are known": totals["requests"] != sent.requests,
        f"{totals['running']} requests have no end": totals["running"],
        f"{missing} events are missing": missing,
        "the history of some requests is incomplete": incomplete,
    }
    return [said for said, is_wrong in faults.items() if is_wrong]


def started(options: argparse.Namespace, folder: Path) -> Sidecar:
    """A sidecar that keeps its store in a folder of its own."""
    folder.mkdir()
    return Sidecar(folder, options.grpc_port, options.http_port, *options.serve)


def compare(options: argparse.Namespace, environments: Mapping[str, Path], folder: Path) -> None:
    """Send the same spans, in requests of 512 over HTTP, to a sidecar and to each peer, and print the ratios."""
    engine = Engine("engine")
    payloads = [engine.payload() for _ in range(PEERS_PAYLOADS)]
    sidecar = started(options, folder / "beside")
    try:
        ours = peers.rate(HttpClient(sidecar.http_port), payloads, None)
    finally:
        sidecar.end()
    print(f"the same {sum(payload.spans for payload in payloads):,} spans over HTTP: kvtrail {ours:,.0f} spans/s")
    for name, environment in environments.items():
        with peers.running(name, environment, folder) as (client, database):
            theirs = peers.rate(client, payloads, database)
        print(f"  {name}: {theirs:,.0f} spans/s; ratio {ours / theirs:.1f}")


def clients(options: argparse.Namespace, sidecar: Sidecar) -> list[Client]:
    """A connection for every few engines."""
    if options.protocol == "grpc":
        return [GrpcClient(sidecar.grpc_port) for _ in range(options.connections)]
    return [HttpClient(sidecar.http_port) for _ in range(options.connections)]


def arguments() -> argparse.ArgumentParser:
    """What this program and `soak.py` can be asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--rate", type=float, default=0, help="spans a second; 0, the default, for as many as go")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--protocol", choices=["grpc", "http"], default="grpc")
    parser.add_argument("--drift-every", type=int, default=5_000, help="spans of an engine from one drift to the next")
    parser.add_argument("--kill-every", type=float, default=0, help="seconds from one kill -9 to the next; 0: none")
    parser.add_argument("--grpc-port", type=int, default=24317, help="of the sidecar that is started")
    parser.add_argument("--http-port", type=int, default=24318)
    parser.add_argument(
        "--serve", nargs=argparse.REMAINDER, default=[], help="options of `kvtrail serve`: the last one"
    )
    return parser


def main() -> None:
    parser = arguments()
    parser.add_argument("--peer", action="append", default=[], help="NAME=FOLDER: also mlflow or phoenix, from a venv")
    options = parser.parse_args()
    environments = {name: Path(folder) for name, _, folder in (each.partition("=") for each in options.peer)}
    with tempfile.TemporaryDirectory() as folder:
        sidecar = started(options, Path(folder) / "store")
        try:
            code = run(options, sidecar)
        finally:
            sidecar.end()
        if environments:
            compare(options, environments, Path(folder))
    sys.exit(code)


if __name__ == "__main__":
    main()
