"""Logs of growing size: the processor time and the most memory of an audit, and whether time grows as the size and memory not
at all.

A log is made of the lines that vLLM with LMCache prints for one request, and of other lines between them, repeated with
other ids and later times: 16 MiB are about 10,000 requests. Each audit runs in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

MIB = 1 << 20
BEGAN = datetime(2026, 3, 4, 10, 0, tzinfo=UTC)
EVERY = timedelta(milliseconds=40)
"""Between two requests, which take three seconds each."""
ENGINE, SERVER = "(EngineCore_DP0 pid=501)", "(APIServer pid=1)"
STORY = (
    (0, f"{SERVER} INFO:     10.0.0.7:53412 - \"POST /v1/chat/completions HTTP/1.1\" 200 OK"),
    (1, f"{SERVER} INFO {{short}} [logger.py:43] Received request {{id}}: prompt: None, params: SamplingParams(n=1)."),
    (10, f"{ENGINE} [{{at}}] LMCache INFO: Reqid: {{id}}, Total tokens 2774, LMCache hit tokens: 2560, need to load: 2560"
         " (vllm_v1_adapter.py:1602:lmcache.integration.vllm.vllm_v1_adapter)"),
    (30, f"{ENGINE} [{{at}}] LMCache INFO: Reqid: {{id}}, Retrieved 2560 out of 2560 required tokens (from 2774 total"
         " tokens). size: 0.2734 gb, cost 9.2407 ms, throughput: 29.5 GB/s; (cache_engine.py:703:lmcache.v1.cache_engine)"),
    (60, f"{ENGINE} [{{at}}] LMCache INFO: Storing KV cache for 214 out of 2774 tokens (skip_leading_tokens=2560) for request"
         " {id} (vllm_v1_adapter.py:1130:lmcache.integration.vllm.vllm_v1_adapter)"),
    (62, f"{ENGINE} [{{at}}] LMCache INFO: Stored 214 out of total 214 tokens. size: 0.0229 gb, cost 3.1 ms, throughput: 7.4"
         " GB/s; offload_time: 1.9 ms, put_time: 1.1 ms (cache_engine.py:323:lmcache.v1.cache_engine)"),
    (70, f"{SERVER} INFO {{short}} [loggers.py:123] Engine 000: Avg prompt throughput: 5100.2 tokens/s, Avg generation"
         " throughput: 310.4 tokens/s, Running: 61 reqs, Waiting: 4 reqs, GPU KV cache usage: 71.3%, Prefix cache hit"
         " rate: 44.0%"),
)  # fmt: skip
"""Milliseconds since the request came, and a line."""


def write(path: Path, size: int) -> int:
    """Write a log of at least so many bytes; returns the requests."""
    written = number = 0
    with path.open("w") as log:
        while written < size:
            for after_ms, line in STORY:
                at = BEGAN + number * EVERY + timedelta(milliseconds=after_ms)
                times = {"at": f"{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03}", "short": f"{at:%m-%d %H:%M:%S}"}
                written += log.write(line.format(id=f"chatcmpl-{number:032x}", **times) + "\n")
            number += 1
    return number


def audited(path: Path) -> tuple[float, float]:
    """The processor seconds of an audit, and its most memory in MiB."""
    process = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "kvtrail", "audit", str(path)],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, used = os.wait4(process, 0)
    assert os.waitstatus_to_exitcode(status) in (0, 3), f"the audit of {path} failed"
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, nargs="+", default=[16, 64, 256], help="the sizes, smallest first")
    arguments = parser.parse_args()
    before: tuple[float, float, float] | None = None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.log"
        write(path, 1)
        start_s, start_mib = audited(path)
        print(f"a log of one request: {start_s:.1f} s of processor time, {start_mib:.0f} MiB")
        for mib in arguments.mib:
            requests = write(path, mib * MIB)
            seconds, most = audited(path)
            rate = mib / (seconds - start_s)
            print(
                f"{mib} MiB, {requests:,} requests: {seconds:.1f} s, {rate:.2f} MiB/s, at most {most:.0f} MiB", end=""
            )
            if before is not None:
                print(
                    f"; {mib / before[0]:.1f} times the size took {(seconds - start_s) / before[1]:.2f} times the time and"
                    f" {most / before[2]:.2f} times the memory",
                    end="",
                )
            print(flush=True)
            before = mib, seconds - start_s, most


if __name__ == "__main__":
    main()
