"""A sidecar that comes back after an outage, while an engine sends long prompts: how long it is deaf, and what it takes.

    python benchmarks/outage.py                    twenty prompts of 128,000 new tokens a second, and 12 s without a sidecar
    python benchmarks/outage.py --against OTHER    this checkout, and then another one

It prints the longest wait of a post, the longest time in which no request became known, when all that was sent after the
outage was known, and the sidecar's memory at most; exit code 1 beyond the bounds.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import httpx
import rounds
from ingest import LONG, long_prompts

ROOT = Path(__file__).parents[1]
BEFORE_S, OUTAGE_S, AFTER_S = 8, 12, 40
A_SECOND = 20
SENDERS = 8
MAX_WAIT_S, MAX_DEAF_S, MAX_MIB = 5.0, 5.0, 512
GRPC_PORT, HTTP_PORT = 38317, 38318
URL = f"http://127.0.0.1:{HTTP_PORT}"
MIB = 2**20


@dataclass
class Seen:
    """What was seen of a sidecar after its outage. Times are seconds of the monotonic clock.

    Attributes:
        sent: how many prompts it acknowledged.
        refused: how many posts it did not.
        longest_s: the longest wait of a post.
        known: when more requests were known, and how many.
        most_mib: its resident memory at most.
    """

    sent: int = 0
    refused: int = 0
    longest_s: float = 0.0
    known: list[tuple[float, int]] = field(default_factory=list)
    most_mib: float = 0.0

    def deaf_s(self) -> float:
        """The longest time in which no request became known."""
        moments = [at_s for at_s, _ in self.known]
        return max((after - before for before, after in pairwise(moments)), default=float("inf"))


def outage(tokens: int, a_second: int) -> Seen:
    """Send prompts, kill the sidecar, start it again, and watch it."""
    began_ns = time.monotonic_ns()
    prompts, seen = long_prompts(tokens, clock=lambda: time.monotonic_ns() - began_ns), Seen()
    with tempfile.TemporaryDirectory() as folder:
        with rounds.tracer(Path(folder), GRPC_PORT, HTTP_PORT):
            _send(prompts, a_second, BEFORE_S, Seen())
        for _ in range(OUTAGE_S * a_second):  # the recorder drops them
            next(prompts)
        before_s = time.monotonic()
        with rounds.tracer(Path(folder), GRPC_PORT, HTTP_PORT) as process:
            seen.known.append((time.monotonic(), 0))
            print(f"started within {time.monotonic() - before_s:.1f} s", file=sys.stderr)
            over = threading.Event()
            watcher = threading.Thread(target=_watch, args=(process.pid, seen, over))
            watcher.start()
            _send(prompts, a_second, AFTER_S, seen)
            deadline_s = time.monotonic() + 30
            while seen.known[-1][1] < seen.sent and time.monotonic() < deadline_s:
                time.sleep(0.2)
            over.set()
            watcher.join()
    return seen


def _send(prompts: Iterator[bytes], a_second: int, seconds: float, seen: Seen) -> None:
    began_s = time.monotonic()
    lock = threading.Lock()
    with httpx.Client(trust_env=False, timeout=60) as client, ThreadPoolExecutor(SENDERS) as senders:

        def post(payload: bytes) -> None:
            posted_s = time.monotonic()
            answer = client.post(
                f"{URL}/v1/traces", content=payload, headers={"content-type": "application/x-protobuf"}
            )
            with lock:
                seen.longest_s = max(seen.longest_s, time.monotonic() - posted_s)
                seen.sent += answer.status_code == 200
                seen.refused += answer.status_code != 200

        for number in range(int(seconds * a_second)):
            time.sleep(max(0, began_s + number / a_second - time.monotonic()))
            senders.submit(post, next(prompts))


def _watch(pid: int, seen: Seen, over: threading.Event) -> None:
    since_ns = time.time_ns()
    page = os.sysconf("SC_PAGE_SIZE")
    with httpx.Client(trust_env=False, timeout=60) as client:
        while not over.wait(0.2):
            counts = client.get(f"{URL}/api/status", params={"since_ns": since_ns}).json()["outcomes"]
            if (known := sum(counts.values())) > seen.known[-1][1]:
                seen.known.append((time.monotonic(), known))
            resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
            seen.most_mib = max(seen.most_mib, resident / MIB)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="the root of another checkout")
    parser.add_argument("--tokens", type=int, default=LONG, help="of a prompt")
    parser.add_argument("--a-second", type=int, default=A_SECOND, help="prompts a second")
    options = parser.parse_args()
    failed = False
    for checkout in (ROOT, options.against):
        if checkout is None:
            continue
        os.environ["PYTHONPATH"] = str(checkout / "src")
        seen = outage(options.tokens, options.a_second)
        print(
            f"{checkout}: {seen.sent} prompts taken, {seen.refused} refused; the longest post took {seen.longest_s:.1f} s,"
            f" no request became known for {seen.deaf_s():.1f} s, {seen.known[-1][1]} known in the end;"
            f" {seen.most_mib:.0f} MiB at most",
            flush=True,
        )
        if checkout == ROOT:
            failed = seen.longest_s > MAX_WAIT_S or seen.deaf_s() > MAX_DEAF_S or seen.most_mib > MAX_MIB
    sys.exit(failed)


if __name__ == "__main__":
    main()
