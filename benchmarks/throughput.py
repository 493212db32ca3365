"""What tracing costs vLLM: the same OffloadConnector traced and untraced, round by round in turn.

`bare`: the bare scheduler, thousands of steps a second, where each microsecond shows. `thread`: the same, but only the CPU of
the scheduler's thread, and nothing is sent. `engine`: the real engine on the CPU.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import rounds

SIDES = ("OffloadConnector", "UntracedOffloadConnector")
GRPC_PORT, HTTP_PORT = 24327, 24328
TURNS = 10
"""Turns of the bare scheduler in a round."""


class NullExporter:
    """Drops what is recorded."""

    endpoint = "nowhere"

    def open(self, resource: Mapping[str, Any], span_id_base: int, base_ns: int) -> None: ...

    def send(self, events: Sequence[Any]) -> bool:
        return True

    def close(self) -> None: ...


def bare(folder: Path, count: int, *, of_thread: bool) -> None:
    """Steps a second, in one process, in turns of about 50 ms, since a shared machine changes its speed from one second to
    the next. A turn's time is its wall time, and the CPU that it takes to send what it has recorded; or, `of_thread`, the CPU
    of the scheduler's thread."""
    from kvtrail.connector.demo.workload import shared_prefixes
    from kvtrail.connector.recording.recorder import recorders
    from kvtrail.connector.simulate.stages import BareScheduler

    schedulers = {side: BareScheduler(folder / "model", {"kv_connector": side}) for side in SIDES}
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    clock = time.thread_time if of_thread else time.perf_counter
    gc.disable()  # between the turns instead
    for number in range(count * TURNS + 1):
        for side in SIDES if number % 2 else SIDES[::-1]:
            scheduler = schedulers[side]
            gc.collect(1)
            before, started = scheduler.steps, clock()
            for job in shared_prefixes(seed=number):
                scheduler.add(f"{number}-{job.id}", list(job.prompt), job.max_tokens)
            scheduler.run()
            spent = clock() - started
            cpu = time.process_time()
            for recorder in recorders():
                recorder.flush()
            spent += 0 if of_thread else time.process_time() - cpu
            scheduler.scheduler.reset_prefix_cache()
            if number:  # the first turn warms up
                rates[side].append((scheduler.steps - before) / spent)
    what, names = "bare scheduler" + (", its thread's CPU" if of_thread else ""), ("traced", "untraced")
    rounds.print_ratio(what, rates[SIDES[0]], rates[SIDES[1]], "steps/s", names)
    each = {side: [1e6 / rate for rate in rates[side]] for side in SIDES}
    rounds.print_ratio("a step", each[SIDES[0]], each[SIDES[1]], "us", names)


def engine(folder: Path, count: int, layers: int) -> None:
    """Generated tokens a second, and CPU a token, of one engine whose connector is traced in every other round.

    What tracing costs a step does not grow with the model, and what a step takes does: hence `layers`.

    One process and not two, since two processes of the same program differ by some per cent from their start to their end.
    """
    from kvtrail.connector.demo import workload
    from kvtrail.connector.simulate import tiny_model

    tiny_model.prepare_environment()  # before torch is loaded
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    from kvtrail.connector.demo.workload import DemoRequest
    from kvtrail.connector.recording.recorder import recorders
    from kvtrail.connector.registration import resolve
    from kvtrail.connector.tracing.traced import Tracing, TracingHMA

    llm = tiny_model.build(folder / "model", {"kv_connector": SIDES[0]}, layers=layers)
    connectors = [llm.llm_engine.engine_core.engine_core.scheduler.connector, get_kv_transfer_group()]
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    cpu: dict[str, list[float]] = {side: [] for side in SIDES}
    generated_by: dict[str, dict[str, list[int]]] = {}
    jobs = workload.shared_prefixes()
    traced, plain = map(resolve, SIDES)
    overridden = {name for mixin in (Tracing, TracingHMA) for name in vars(mixin) if hasattr(plain, name)}
    calls_plain = {name: getattr(plain, name) for name in overridden if callable(getattr(plain, name))}
    kinds = {SIDES[0]: traced, SIDES[1]: type("Plain", (traced,), calls_plain)}  # the same layout, the plain methods
    for number in range(count + 1):
        for side in SIDES if number % 2 else SIDES[::-1]:
            for connector in connectors:
                connector.__class__ = kinds[side]
            llm.reset_prefix_cache()
            named = [DemoRequest(f"{number}-{side}-{j.id}", j.prompt, j.max_tokens, j.arrives_at_step) for j in jobs]
            gc.collect()
            started, cpu_started = time.perf_counter(), time.process_time()
            tokens = workload.run(llm, named)
            seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
            generated_by[side] = {job.partition(f"{side}-")[2]: made for job, made in tokens.items()}
            generated = sum(map(len, tokens.values()))
            if number:  # the first round warms up
                rates[side].append(generated / seconds)
                cpu[side].append(cpu_s / generated * 1e6)
            time.sleep(0.6)  # what was recorded leaves now, and not in the next round
        assert generated_by[SIDES[0]] == generated_by[SIDES[1]], "tracing changed the tokens"
    rounds.print_ratio(
        f"real engine on the CPU, {layers} layers", rates[SIDES[0]], rates[SIDES[1]], "tokens/s", ("traced", "untraced")
    )
    rounds.print_ratio("the engine's CPU", cpu[SIDES[0]], cpu[SIDES[1]], "us/token", ("traced", "untraced"))
    print(f"the tokens are the same on both sides; events dropped: {sum(r.dropped for r in recorders())}")
    llm.llm_engine.engine_core.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["bare", "thread", "engine"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--layers", type=int, default=2, help="layers of the engine's model")
    parser.add_argument("--tracer", choices=["running", "absent", "hung"], default="running")
    arguments = parser.parse_args()
    os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = f"http://127.0.0.1:{GRPC_PORT}"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if arguments.what == "thread":
            from kvtrail.connector.recording.recorder import exporting_to

            stack.enter_context(exporting_to(NullExporter))
        elif arguments.tracer != "absent":
            process = stack.enter_context(rounds.tracer(folder, GRPC_PORT, HTTP_PORT))
            if arguments.tracer == "hung":
                process.send_signal(signal.SIGSTOP)
        if arguments.what != "thread":
            print(f"tracer: {arguments.tracer}")
        if arguments.what == "engine":
            engine(folder, arguments.rounds, arguments.layers)
        else:
            bare(folder, arguments.rounds, of_thread=arguments.what == "thread")


if __name__ == "__main__":
    main()
