"""What open tabs cost: the processor time of the dashboard, in percent of a core, with five tabs in a real Chromium.

Five live pages, with a tracer that gets requests all the time, take turns with five tabs of a request that is over. With
`--against CHECKOUT` the live pages take turns with those of another checkout's dashboard.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import httpx
import rounds
from playwright.sync_api import Browser, sync_playwright
from traffic import Engine, Recording, served
from wire import encoded

LIVE: tuple[str, ...] = ("", "live", "requests", "fleet", "findings")
TABS = len(LIVE)
SETTLED_MS = 3_000
S = 10**9
OVER_S = 3600
"""How long ago the request that is over ended."""


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def traffic(url: str) -> Iterator[str]:
    """Two engines that serve; the id of a request that ended an hour ago."""

    def post(body: bytes) -> None:
        headers = {"content-type": "application/x-protobuf"}
        httpx.post(f"{url}/v1/traces", content=body, headers=headers, trust_env=False).raise_for_status()

    now_ns = time.time_ns()
    from_ns = now_ns - OVER_S * S
    ended = list(served(Engine("ended"), from_ns=from_ns, to_ns=from_ns + S, every_ms=500))
    post(encoded(ended))
    recordings = [Recording(Engine(name), from_ns=now_ns - 20 * S, stale_every=5) for name in ("a", "b")]
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(0.5):
            for recording in recordings:
                if events := list(recording.until(time.time_ns())):
                    post(encoded(events))

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield next(event.request for event in ended if event.request)
    finally:
        over.set()
        thread.join()


def cpu_s(pid: int) -> float:
    """The processor time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cost(browser: Browser, url: str, pid: int, paths: Sequence[str], seconds: float) -> float:
    """What open tabs cost, in percent of a core."""
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        tabs = [context.new_page() for _ in paths]
        for tab, path in zip(tabs, paths, strict=True):
            tab.goto(f"{url}/{path}")
            tab.wait_for_timeout(SETTLED_MS)
        began, before = time.monotonic(), cpu_s(pid)
        tabs[0].wait_for_timeout(seconds * 1000)
        return 100 * (cpu_s(pid) - before) / (time.monotonic() - began)


def main() -> None:
    """Measure, and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout of kvtrail")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20)
    given = parser.parse_args()
    ours = Path(__file__).parents[1]
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        http_port = free_port()
        running.enter_context(rounds.tracer(folder, free_port(), http_port))
        tracer_url = f"http://127.0.0.1:{http_port}"

        def dashboard(checkout: Path) -> tuple[str, int]:
            port = free_port()
            url = f"http://127.0.0.1:{port}"
            command = ("kvtrail", "dashboard", "--tracer", tracer_url, "--port", str(port))
            path = os.pathsep.join((str(checkout / "src"), str(checkout / "tests")))
            process = running.enter_context(
                rounds.answering(f"{url}/_stcore/health", *command, environment={**os.environ, "PYTHONPATH": path})
            )
            return url, process.pid

        request = running.enter_context(traffic(tracer_url))
        sides = {"live": (*dashboard(ours), LIVE)}
        if given.against is None:
            sides["over"] = (*sides["live"][:2], (f"request?id={request}",) * TABS)
        else:
            sides["the other checkout's"] = (*dashboard(given.against), LIVE)
        browser = running.enter_context(sync_playwright()).chromium.launch(**rounds.CHROMIUM)
        running.callback(browser.close)
        costs: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(given.rounds):
            for name, (url, pid, paths) in sides.items():
                costs[name].append(cost(browser, url, pid, paths, given.seconds))
    for name, each in costs.items():
        print(f"{TABS} tabs, {name}: {statistics.median(each):.1f} % of a core ({min(each):.1f} to {max(each):.1f})")
    first, second = costs
    rounds.print_ratio("tabs", costs[second], costs[first], "%", (second, first))


if __name__ == "__main__":
    main()
