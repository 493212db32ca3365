"""Records the golden traces again: `python tests/golden/record.py [NAME...]`, from the root of the repository. With
`--version` it records what this version's recorders send (`released.py`), once for each release.

Each function is a trace: what it does to the real scheduler of vLLM is recorded, and its docstring is the trace's story, as
`README.md` has it beside the verdicts. Times and ids are new with every recording; what is judged is not.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from recording import recording
from released import AS_SENT, VERSIONS, figures, joined

from kvtrail import __version__
from kvtrail.connector.demo.workload import stale_lookup
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.simulate.scenario import Workers
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.history.audit import audit
from kvtrail.tracer.history.history import load
from kvtrail.tracer.history.minimize import minimize
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.model.findings import Verdict

HERE = Path(__file__).parent
HEAD = """# Golden traces

Recorded from vLLM's real scheduler, without a model. `python tests/golden/record.py` records them again and writes this
table, which the tests read. It counts requests by their verdicts, as `kvtrail audit` does.

| trace | ok | drift | unknown | findings | story |
| --- | --- | --- | --- | --- | --- |
"""


def scheduler(
    name: str, *, level: str = "basic", num_blocks: int = 64, seed: int = 0, engine: str = "golden", **extra: Any
) -> BareScheduler:
    """A scheduler in the current folder, so that no trace names a path of this machine."""
    connector: dict[str, Any] = {
        "kv_connector": name,
        "kv_connector_extra_config": {"kvtrail": {"level": level}, **extra},
        "engine_id": engine,
    }
    if ":" in name:
        connector["kv_connector_module_path"] = "kvtrail.connector"
    return BareScheduler(Path("model"), connector, num_blocks=num_blocks, workers=Workers(seed=seed))


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 512) for _ in range(length)]


def stale_lookup_whole(path: Path) -> None:
    """Eight long prompts at once; one is preempted during its prefill, finds its blocks again, waits, and is answered from
    memory: the engine dies of LMCache #2158's assertion."""
    with recording(path):
        bare = scheduler("Faulty:stale-lookup:OffloadConnector")
        for job in stale_lookup():
            bare.add(job.id, list(job.prompt), job.max_tokens)
        with contextlib.suppress(AssertionError):
            bare.run()


def stale_lookup_minimized(path: Path) -> None:
    """The same history with every step recorded, reduced by `kvtrail minimize`."""
    whole = path.with_suffix(".whole")
    with recording(whole):
        bare = scheduler("Faulty:stale-lookup:OffloadConnector", level="detailed")
        for job in stale_lookup():
            bare.add(job.id, list(job.prompt), job.max_tokens)
        with contextlib.suppress(AssertionError):
            bare.run()
    small = minimize(load([whole])).history
    path.write_text("".join(f"{otlp_json.spans_to_json_line([span])}\n" for _, span in small.moments))
    whole.unlink()


def preempted(path: Path) -> None:
    """Three requests share a pool that is too small: one is preempted, waits, and continues with the blocks it has left."""
    with recording(path):
        bare = scheduler("OffloadConnector", num_blocks=16, chunk_size=64)
        for number in range(3):
            bare.add(f"r-{number}", prompt(number, 180), 12)
        bare.run()


def loaded_again(path: Path) -> None:
    """The engine drops its prefix cache while two requests run: both are preempted, and loaded back from host memory."""
    with recording(path):
        bare = scheduler("OffloadConnector", level="detailed", chunk_size=64)
        for number in range(2):
            bare.add(f"r-{number}", prompt(number, 100), 6)
        for _ in range(6):
            bare.step()
        bare.scheduler.reset_prefix_cache(reset_running_requests=True)
        bare.run()


def loaded_asynchronously(path: Path) -> None:
    """vLLM's own OffloadingConnector: a prompt is stored, dropped by the engine, and loaded again between the steps."""
    with recording(path):
        _store_and_load(scheduler("TracedOffloadingConnector", level="detailed", cpu_bytes_to_use=50_000_000))


def _store_and_load(bare: BareScheduler) -> None:
    for number in range(2):
        bare.add(f"r-{number}", prompt(0, 100), 3)
        bare.run()
        for _ in range(6):  # what is stored arrives late
            bare.step()
        bare.scheduler.reset_prefix_cache()


def aborted(path: Path) -> None:
    """Two requests share a prefix; the client of one goes away while it loads, and the other is served."""
    with recording(path):
        bare = scheduler("TracedOffloadingConnector", level="detailed", seed=3, cpu_bytes_to_use=50_000_000)
        bare.add("first", prompt(0, 100), 3)
        bare.run()
        for _ in range(6):
            bare.step()
        bare.scheduler.reset_prefix_cache()
        bare.add("gone", prompt(0, 100), 3)
        bare.step()
        bare.abort("gone")
        bare.add("served", prompt(0, 100), 3)
        bare.run()
        for _ in range(6):
            bare.step()


def truncated(path: Path) -> None:
    """The recording `preempted`, with its writer killed in the middle of a line."""
    preempted(path)
    text = path.read_text()
    path.write_text(text[: text.rindex("\n", 0, len(text) // 2) + 2000])


def gap(path: Path) -> None:
    """The recording `preempted` without the allocations of one request: what that request did is unknown."""
    preempted(path)
    lost = {e.span_id for e in load([path]).events if e.request == "r-1" and e.kind is Kind.ALLOC}
    left = [span for _, span in load([path]).moments if span.span_id not in lost]
    path.write_text("".join(f"{otlp_json.spans_to_json_line(left[n : n + 8])}\n" for n in range(0, len(left), 8)))


def this_version() -> None:
    """What recorders send at level `detailed`, of three engines: a drift that ends one of them, preemptions, and
    asynchronous loads."""
    as_sent: list[bytes] = []
    nowhere = Path("lines.jsonl")
    with recording(nowhere, as_sent=as_sent):
        bare = scheduler("Faulty:stale-lookup:OffloadConnector", level="detailed", engine="dying")
        for job in stale_lookup():
            bare.add(job.id, list(job.prompt), job.max_tokens)
        with contextlib.suppress(AssertionError):
            bare.run()
    with recording(nowhere, as_sent=as_sent):
        bare = scheduler("OffloadConnector", level="detailed", engine="preempting", num_blocks=16, chunk_size=64)
        for number in range(3):
            bare.add(f"r-{number}", prompt(number, 180), 12)
        bare.run()
    with recording(nowhere, as_sent=as_sent):
        _store_and_load(
            scheduler("TracedOffloadingConnector", level="detailed", engine="loading", cpu_bytes_to_use=50_000_000)
        )
    stream = VERSIONS / f"{__version__}{AS_SENT}"
    stream.write_bytes(joined(as_sent))
    stream.with_suffix(".json").write_text(json.dumps(figures(stream), indent=2) + "\n")


TRACES: dict[str, Callable[[Path], None]] = {
    "stale-lookup-whole": stale_lookup_whole,
    "stale-lookup": stale_lookup_minimized,
    "preempted": preempted,
    "loaded-again": loaded_again,
    "loaded-asynchronously": loaded_asynchronously,
    "aborted": aborted,
    "truncated": truncated,
    "gap": gap,
}


def row(name: str) -> str:
    """A trace's line in the table."""
    result = audit([HERE / f"{name}.jsonl"])
    counts = " | ".join(str(result.verdicts[verdict]) for verdict in (Verdict.OK, Verdict.DRIFT, Verdict.UNKNOWN))
    rules = ", ".join(f.rule for f in result.findings) or "none"
    return f"| {name} | {counts} | {rules} | {' '.join((TRACES[name].__doc__ or '').split())} |"


def main() -> None:
    """Record the traces that are named, or all, and write the table; or what this version's recorders send."""
    if sys.argv[1:] == ["--version"]:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            this_version()
        return
    for name in sys.argv[1:] or TRACES:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            TRACES[name](HERE / f"{name}.jsonl")
    (HERE / "README.md").write_text(HEAD + "\n".join(map(row, TRACES)) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("OTEL_SERVICE_NAME", "vllm")
    os.environ.setdefault("OTEL_RESOURCE_ATTRIBUTES", "host.name=golden")  # not the name of this machine
    main()
