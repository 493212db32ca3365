"""How long every request of the dashboard's pages takes, to real tracers over stores of different sizes.

The dashboard's own client asks, as its pages do, so the time is that of the store, the API, and decoding the answer. Cold
means that the operating system has dropped the store's file from its cache. The stores take turns.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import rounds

from kvtrail.dashboard.client import Row, Tracer
from kvtrail.dashboard.live.view import View, question

PORT = 18_600
S = 10**9
WARM, COLD = 7, 3
"""Rounds."""
PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class Question:
    """What a page asks, either once (`open`) or every few seconds (`refresh`)."""

    view: str
    when: str
    what: str
    ask: Callable[[], object]


class Patient(httpx.HTTPTransport):
    """Waits longer than a page would."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), PATIENCE_S)
        return super().handle_request(request)


@contextmanager
def served(store: Path, port: int) -> Iterator[tuple[str, float]]:
    """A `kvtrail serve` process over a store: its address, and the seconds until it answered."""
    arguments = ["--store", str(store), "--retain-hours", "1e6", "--http-port", str(port), "--grpc-port", str(port + 1)]
    began = time.perf_counter()
    url = f"http://127.0.0.1:{port}"
    with rounds.answering(f"{url}/api/health", "kvtrail", "serve", *arguments):
        yield url, time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Sights:
    """What to look at in a store: some requests, one with a finding, and when the last one began."""

    some: Row
    other: Row
    with_finding: Row
    until_ns: int

    def view(self, hours: float) -> View:
        """The lanes of the last `hours`."""
        return View(fit=False, span_ms=hours * 3_600_000, to_ms=self.until_ns / 1e6)


def sights(source: Tracer) -> Sights:
    """Choose what to look at; the same at every call."""
    latest = source.get("requests", limit=5000)
    dice = random.Random(3)
    some, other = dice.sample([each for each in latest if each["ended_ns"] and not each["findings"]], 2)
    with_finding = dice.choice([each for each in latest if each["findings"]])
    return Sights(some, other, with_finding, latest[0]["started_ns"])


def questions(source: Tracer, seen: Sights) -> list[Question]:
    """Every question, in the order of the pages."""

    def back(hours: float) -> dict[str, int]:
        return {"since_ns": seen.until_ns - int(hours * 3600 * S), "until_ns": seen.until_ns}

    def lanes(hours: float, **filters: str) -> Callable[[], object]:
        view = seen.view(hours)
        return lambda: source.get("lanes", **question(view, filters, end_ms=seen.until_ns / 1e6))

    def request(which: Row) -> Callable[[], object]:
        return lambda: source.request(which["request"], engine=which["engine"])

    def searched(text: str, verdict: str = "") -> Callable[[], object]:
        return lambda: source.get("requests", search=text, verdict=verdict)

    def efficiency(hours: float, engine: str = "") -> Callable[[], object]:
        return lambda: source.get("efficiency", engine=engine, **back(hours))

    some, external = seen.some, seen.some["external"]
    listed: list[tuple[str, str, str, Callable[[], object]]] = [
        ("Live", "refresh", "/api/lanes, 5 min", lanes(1 / 12)),
        ("Live", "refresh", "/api/lanes, 1 h", lanes(1)),
        ("Live", "refresh", "/api/lanes, 3 days", lanes(72)),
        ("Live", "refresh", "/api/lanes, 5 min, a part of all ids", lanes(1 / 12, q="chat")),
        ("Live", "refresh", "/api/lanes, 3 days, a part of all ids", lanes(72, q="chat")),
        ("Live", "refresh", "/api/lanes, 3 days, a part of some ids", lanes(72, q="chat-77")),
        ("Live", "refresh", "/api/lanes, 3 days, a whole id", lanes(72, q=some["request"])),
        ("Live", "refresh", "/api/lanes, 3 days, nobody's id", lanes(72, q="nobody")),
        ("Live", "refresh", "/api/lanes, 3 days, status failed", lanes(72, status="failed")),
        ("Overview", "refresh", "/api/health", lambda: source.get("health")),
        ("Overview", "refresh", "/api/totals", lambda: source.get("totals")),
        ("Overview", "refresh", "/api/requests, 1000", lambda: source.get("requests", limit=1000)),
        ("Overview", "refresh", "/api/findings, 5", lambda: source.get("findings", limit=5)),
        ("Requests", "refresh", "/api/requests, 200", lambda: source.get("requests")),
        ("Requests", "refresh", "... a whole id", searched(some["request"])),
        ("Requests", "refresh", "... an external id", searched(external)),
        ("Requests", "refresh", "... a trace id", searched(some["trace_id"])),
        ("Requests", "refresh", "... a part of all ids", searched("chat")),
        ("Requests", "refresh", "... a part of some old ids", searched("chat-77")),
        ("Requests", "refresh", "... eight characters within", searched(external[8:16])),
        ("Requests", "refresh", "... two characters", searched("7a")),
        ("Requests", "refresh", "... two characters of nobody's id", searched("zz")),
        ("Requests", "refresh", "... nobody's id", searched("nobody")),
        ("Requests", "refresh", "... verdict drift", lambda: source.get("requests", verdict="drift")),
        ("Requests", "refresh", "... status running", lambda: source.get("requests", status="running")),
        ("Requests", "refresh", "... status failed, and there is none", lambda: source.get("requests", status="failed")),
        ("Requests", "refresh", "... verdict drift and nobody's id", searched("nobody", verdict="drift")),
        ("Requests", "refresh", "... verdict ok and a part of all ids", searched("chat", verdict="ok")),
        ("Findings", "open", "/api/findings/trend, for the choices", lambda: source.get("findings/trend")),
        ("Findings", "refresh", "/api/findings/trend, 1 h", lambda: source.get("findings/trend", **back(1))),
        ("Findings", "refresh", "/api/findings/trend, 7 days", lambda: source.get("findings/trend", **back(168))),
        ("Findings", "refresh", "/api/findings, 200 of 1 h", lambda: source.get("findings", limit=200, **back(1))),
        ("Findings", "refresh", "/api/findings, 200 of 7 days", lambda: source.get("findings", limit=200, **back(168))),
        ("Findings", "refresh", "... of a model and a connector",
         lambda: source.get("findings", limit=200, model="small", connector="LMCacheConnectorV1", **back(168))),
        ("Findings", "refresh", "/api/findings/trend, 7 days, the same",
         lambda: source.get("findings/trend", model="small", connector="LMCacheConnectorV1", **back(168))),
        ("Findings", "refresh", "/api/rules", lambda: source.get("rules")),
        ("Efficiency", "open", "/api/efficiency, 7 days, for the choices", efficiency(168)),
        ("Efficiency", "refresh", "/api/efficiency, 1 h", efficiency(1)),
        ("Efficiency", "refresh", "/api/efficiency, 6 h", efficiency(6)),
        ("Efficiency", "refresh", "/api/efficiency, 24 h", efficiency(24)),
        ("Efficiency", "refresh", "/api/efficiency, 6 h, one engine", efficiency(6, "engine-1")),
        ("Fleet", "refresh", "/api/fleet", lambda: source.get("fleet")),
        ("Request", "refresh", "/api/requests/ID", request(some)),
        ("Request", "refresh", "... with a finding", request(seen.with_finding)),
        ("Request", "refresh", "... by its external id", lambda: source.request(external)),
        ("Request", "refresh", "... by its trace id", lambda: source.request(some["trace_id"])),
        ("Request", "refresh", "... by the begin of many ids", lambda: source.request("chat")),
        ("Request", "refresh", "... of nobody", lambda: source.request("nobody")),
        ("Request", "open", "/api/otlp", lambda: source.otlp(some["request"], engine=some["engine"])),
        ("Compare", "open", "/api/requests, 50", lambda: source.get("requests", limit=50)),
        ("Compare", "refresh", "/api/requests/ID, the other", request(seen.other)),
        ("Replay", "refresh", "/api/requests/ID", request(some)),
        ("Prometheus", "refresh", "/metrics", lambda: httpx.get(f"{source.url}/metrics", trust_env=False).raise_for_status()),
    ]  # fmt: skip
    return [Question(*each) for each in listed]


def table(stores: Sequence[Path]) -> None:
    """Ask every question over each store, and print the medians and the ratio of the first store to the last."""
    with ExitStack() as stack:
        asked = []
        for number, store in enumerate(stores):
            url, after_s = stack.enter_context(served(store, PORT + 10 * number))
            source = Tracer(url, transport=Patient())
            totals = source.get("totals")
            print(
                f"{store.name}: {totals['requests']:,} requests, {totals['findings']:,} findings;"
                f" answers after {after_s:.1f} s"
            )
            asked.append(questions(source, sights(source)))
        names = "".join(f"{store.stem + ' warm':>22}{'cold':>9}" for store in stores)
        print(
            f"milliseconds, medians of {WARM} warm rounds (longest in brackets) and {COLD} cold ones\n{'':<64}{names}  ratio"
        )
        for same in zip(*asked, strict=True):
            cold: list[list[float]] = [[] for _ in stores]
            warm: list[list[float]] = [[] for _ in stores]
            for rounds, results, is_cold in ((COLD, cold, True), (1, [[] for _ in stores], False), (WARM, warm, False)):
                for _ in range(rounds):
                    for store, one, times in zip(stores, same, results, strict=True):
                        if is_cold:
                            _forget(store)
                        times.append(_timed(one.ask))
            middle = [statistics.median(times) for times in warm]
            columns = "".join(
                f"{f'{median:,.1f} ({max(times):,.1f})':>22}{statistics.median(first):>9,.1f}"
                for median, times, first in zip(middle, warm, cold, strict=True)
            )
            one = same[0]
            print(f"{one.view:<11}{one.when:<8}{one.what:<45}{columns}{middle[0] / middle[-1]:>7.2f}", flush=True)


def _forget(store: Path) -> None:
    """Make the operating system drop the store's file from its cache."""
    with store.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1000
