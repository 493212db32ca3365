"""How long every page of the dashboard takes to show its content in Chromium, over stores of different sizes.

The stores take turns, and each page opens in a new tab with a warm browser cache.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

import rounds
from big_endpoints import Patient, Sights, served, sights
from playwright.sync_api import Browser, sync_playwright

from kvtrail.dashboard.client import Tracer
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.dashboard.live.view import as_query

PORT = 18_700
ROUNDS = 3
PATIENCE_MS = 30_000
SETTLED = (
    """() => !document.querySelector('[data-stale="true"], [data-testid="stSkeleton"], [data-testid="stSpinner"]')"""
)
"""No part of the page is still loading."""


def pages(seen: Sights) -> list[tuple[str, str, str]]:
    """The pages: name, address, and a text that shows that the content has arrived."""
    of = urlencode({"id": seen.with_finding["request"], "engine": seen.with_finding["engine"]}, quote_via=quote)

    def live(hours: float, **filters: str) -> str:
        return f"requests?{urlencode({'view': 'lanes', **filters, **as_query(seen.view(hours))})}"

    def back(hours: float) -> str:
        return urlencode(TimeRange(seen.until_ns - int(hours * 3600 * 10**9), seen.until_ns).address)

    lanes = r"[1-9][\d,]* requests"
    return [
        ("Live, 5 min", live(1 / 12), lanes),
        ("Live, 3 days", live(72), lanes),
        ("Live, 3 days, an id", live(72, search=seen.some["request"]), r"1 request\b"),
        ("Overview", "", "last spans at"),
        ("Requests", "requests", "Click a row to open it"),
        ("Requests, a search", f"requests?search={seen.some['external'][8:16]}", "Click a row to open it"),
        ("Requests, in vain", "requests?search=nobody", "No request has"),
        ("Findings, 1 h", f"findings?{back(1)}", "The latest in words"),
        ("Findings, 7 days", f"findings?{back(168)}", "The latest in words"),
        ("Savings, 1 h", f"savings?{back(1)}", "By engine and connector"),
        ("Savings, 7 days", f"savings?{back(168)}", "By engine and connector"),
        ("Heat map", "requests?view=heat", "Where the time went"),
        ("Request", f"request?{of}", "Every step"),
        ("Compare", f"request?{of}&tab=compare&with={quote(seen.some['request'])}", "Step by step"),
        ("Replay", f"request?{of}&tab=replay", "Account after it"),
    ]  # fmt: skip


@contextmanager
def shown(tracer_url: str, port: int) -> Iterator[str]:
    """A dashboard process for a tracer: its address."""
    url = f"http://127.0.0.1:{port}"
    with rounds.answering(f"{url}/_stcore/health", "kvtrail", "dashboard", "--tracer", tracer_url, "--port", str(port)):
        yield url


def table(stores: Sequence[Path], *, folder: Path | None = None) -> None:
    """Open every page over each store, and print the medians. Screenshots of the first store's pages go to the folder."""
    with ExitStack() as stack:
        driver = stack.enter_context(sync_playwright())
        browser = stack.enter_context(driver.chromium.launch(**rounds.CHROMIUM))
        asked = []
        for number, store in enumerate(stores):
            tracer_url, _ = stack.enter_context(served(store, PORT + 10 * number))
            source = Tracer(tracer_url, transport=Patient())
            seen = sights(source)
            url = stack.enter_context(shown(tracer_url, PORT + 10 * number + 5))
            asked.append([(name, f"{url}/{path}", text) for name, path, text in pages(seen)])
        print(f"milliseconds from an address to its content, medians of {ROUNDS} (longest in brackets)")
        print(f"{'':<24}{''.join(f'{store.stem:>22}' for store in stores)}  ratio")
        for same in zip(*asked, strict=True):
            results: list[list[float]] = [[] for _ in stores]
            for round_ in range(ROUNDS + 1):
                for times, (name, url, text) in zip(results, same, strict=True):
                    shot = folder / f"{name}.png" if folder and round_ == ROUNDS and times is results[0] else None
                    took_ms = _opened(browser, url, text, shot)
                    if round_:  # the first round loads code
                        times.append(took_ms)
            middle = [statistics.median(times) for times in results]
            columns = "".join(
                f"{f'{m:,.0f} ({max(times):,.0f})':>22}" for m, times in zip(middle, results, strict=True)
            )
            print(f"{same[0][0]:<24}{columns}{middle[0] / middle[-1]:>7.2f}", flush=True)


def _opened(browser: Browser, url: str, text: str, shot: Path | None) -> float:
    page = browser.new_page(viewport={"width": 1400, "height": 1500})
    began = time.perf_counter()
    page.goto(url)
    page.get_by_text(re.compile(text)).first.wait_for(timeout=PATIENCE_MS)
    page.wait_for_function(SETTLED, timeout=PATIENCE_MS, polling=20)
    took_ms = (time.perf_counter() - began) * 1000
    if shot is not None:
        page.wait_for_timeout(1000)
        page.screenshot(path=shot)
    page.close()
    return took_ms
