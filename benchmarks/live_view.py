"""What an update of the live page costs the browser, beside Altair drawing the same events.

A Chromium opens the same page in turn with either. A message that circulates in the page shows when the main thread was
blocked, which a person notices as a page that hangs.

    python benchmarks/live_view.py
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import rounds
from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent
PORT = 18_511
LISTEN = """() => {
  window.gaps = [];
  const { port1, port2 } = new MessageChannel();
  let last = performance.now();
  port1.onmessage = () => {
    const now = performance.now();
    if (now - last > 10) window.gaps.push(now - last);
    last = now;
    setTimeout(() => port2.postMessage(0), 1);
  };
  port2.postMessage(0);
}"""


def updates(page: Page, url: str, *, kind: str, events: int, count: int) -> list[tuple[float, float]]:
    """For each update, in milliseconds: the longest block, and the processor time of the main thread.

    The first updates, which load code, are left out.
    """
    page.goto(f"{url}/?kind={kind}&events={events}")
    number = _wait_for(page, 3)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.evaluate(LISTEN)
    measured = []
    for _ in range(count + 1):
        number = _wait_for(page, number + 1)
        gaps: list[float] = page.evaluate("() => { const gaps = window.gaps; window.gaps = []; return gaps; }")
        metrics = session.send("Performance.getMetrics")["metrics"]
        measured.append(
            (max(gaps, default=0.0), 1000 * next(m["value"] for m in metrics if m["name"] == "TaskDuration"))
        )
    return [(block, after - before) for (_, before), (block, after) in pairwise(measured)]


def _wait_for(page: Page, least: int) -> int:
    """Wait for this update; the number of the one that is on the page then."""
    script = "least => Number((document.body.innerText.match(/update (\\d+)/) ?? [0, 0])[1]) >= least"
    page.wait_for_function(script, arg=least, timeout=120_000)
    found = re.search(r"update (\d+)", page.inner_text("body"))
    assert found is not None
    return int(found[1])


def measure(url: str, *, sizes: Sequence[int], count: int, updates_each: int) -> None:
    """Print the results for each number of events."""
    print("milliseconds per update, median and quartiles: the longest block of the main thread, and its processor time")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(**rounds.CHROMIUM)
        for events in sizes:
            measured: dict[str, list[tuple[float, float]]] = {"component": [], "altair": []}
            ratios = []
            for _ in range(count):
                for kind, values in measured.items():
                    page = browser.new_page(viewport={"width": 1400, "height": 1000})
                    values += updates(page, url, kind=kind, events=events, count=updates_each)
                    page.close()
                ours, theirs = (
                    statistics.median(block for block, _ in values[-updates_each:]) for values in measured.values()
                )
                ratios.append(ours / theirs)
            print(f"{events:>7,} events, ratio {_spread(ratios, digits=3)}, {count} pairs")
            for kind, values in measured.items():
                blocks, cpu = zip(*values, strict=True)
                print(f"          {kind:<10} block {_spread(blocks):<24} processor {_spread(cpu)}", flush=True)
        browser.close()


def _spread(values: Sequence[float], *, digits: int = 0) -> str:
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else [*values] * 3
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--events", type=int, nargs="+", default=[1000, 10_000, 50_000])
    parser.add_argument("--updates", type=int, default=4, help="updates in a round")
    options = parser.parse_args()
    url, page = f"http://127.0.0.1:{PORT}", str(HERE / "live_view_page.py")
    at = (f"--server.port={PORT}", "--server.address=127.0.0.1")
    server = ("streamlit", "run", page, *at, "--server.headless=true", "--server.fileWatcherType=none")
    with rounds.answering(f"{url}/_stcore/health", *server, stderr=subprocess.DEVNULL):
        measure(url, sizes=options.events, count=options.rounds, updates_each=options.updates)


if __name__ == "__main__":
    main()
