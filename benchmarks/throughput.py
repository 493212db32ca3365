"""What tracing costs vLLM: the same OffloadConnector traced and untraced, round by round in turn.

`bare`: the bare scheduler, thousands of steps a second, where each microsecond shows. `thread`: the same, but only the CPU of
the scheduler's thread, and nothing is sent. `running`: that CPU by how many requests run at a time, at both levels, with the
events and bytes of a step, and how many of CPython's instructions it takes. `engine`: the real engine on the CPU.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle, permutations
from pathlib import Path
from typing import Any

import rounds

from kvtrail.connector.recording.exporter import Exporter

SIDES = ("OffloadConnector", "UntracedOffloadConnector")
OFFLOADING = ("TracedOffloadingConnector", "OffloadingConnector")
HOST = {"cpu_bytes_to_use": 1 << 24}
GRPC_PORT, HTTP_PORT = 24327, 24328
TURNS = 10
"""Turns of the bare scheduler in a round."""
STEPS = 30
"""Steps of a turn of `running`, which keeps a number of requests running."""
BLOCKS_EACH = 40
"""For each request that runs: more than it needs, so that nobody is preempted."""


class NullExporter(Exporter):
    """Drops what is recorded."""

    def __init__(self) -> None:
        super().__init__("nowhere")
        self.is_kvtrail = True


class MeasuringExporter(NullExporter):
    """Keeps what is recorded until it is measured."""

    def open(self, resource: Mapping[str, Any], span_id_base: int, base_ns: int) -> None:
        from kvtrail.connector.recording.encoder import Encoder

        self.encoder, self.waiting = Encoder(resource, span_id_base, base_ns), list[Any]()
        self.events = self.bytes = 0

    def send(self, events: Sequence[Any]) -> bool:
        self.waiting += events
        return True

    def measure(self) -> None:
        self.events += len(self.waiting)
        self.bytes += sum(map(len, self.encoder.requests(self.waiting, 512)))
        self.waiting.clear()


class Busy:
    """A bare scheduler in which `running` requests run at all times: each that ends is followed by another. Prompts of 272 to
    455 tokens, 256 of them those of an earlier request, and 50 to 199 tokens to generate."""

    def __init__(self, folder: Path, running: int, side: str, level: str, window: int = 0, **more: str) -> None:
        """With a `window`, the last layer is a KV cache group of its own, which sees `window` tokens. `more` are settings of
        the traced connector besides its level."""
        from kvtrail.connector.simulate.bare_scheduler import BareScheduler
        from kvtrail.tracer.events.cache_groups import FULL, SLIDING, CacheGroup

        extra = {"kvtrail": {"level": level, **more}, **(HOST if side in OFFLOADING else {})}
        settings = {"kv_connector": side, "kv_connector_extra_config": extra}
        size: dict[str, Any] = {"max_num_seqs": running, "max_num_batched_tokens": running + 512}
        blocks = running * BLOCKS_EACH * (2 if window else 1)
        size["groups"] = (CacheGroup(FULL), CacheGroup(SLIDING, window=window)) if window else ()
        self._bare = BareScheduler(folder / "model", settings, block_size=16, num_blocks=blocks, **size)
        self._running, self._count, self._rng = running, 0, random.Random(0)
        self._heads = [self._tokens(256) for _ in range(8)]

    @property
    def begun(self) -> int:
        """Requests that have begun."""
        return self._count

    @property
    def pool(self) -> Any:
        """vLLM's block pool."""
        return self._bare.scheduler.kv_cache_manager.block_pool

    def _tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(3, 512) for _ in range(count)]

    def steps(self, count: int) -> None:
        """Run `count` steps."""
        for _ in range(count):
            while len(self._bare.scheduler.requests) < self._running:
                prompt = self._rng.choice(self._heads) + self._tokens(self._rng.randrange(16, 200))
                self._bare.add(f"r-{self._count}", prompt, self._rng.randrange(50, 200))
                self._count += 1
            self._bare.step()

    def instructions(self, count: int) -> float:
        """The instructions of CPython's interpreter that a step takes, over `count` steps."""
        executed = 0

        def trace(frame: Any, event: str, argument: Any) -> Any:
            nonlocal executed
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
            executed += event == "opcode"
            return trace

        sys.settrace(trace)
        self.steps(count)
        sys.settrace(None)
        return executed / count


def running(folder: Path, count: int, at_a_time: int, of: Sequence[str] = SIDES, window: int = 0) -> None:
    """CPU of the scheduler's thread for a step with `at_a_time` requests, untraced and at both levels, in turns of `STEPS`;
    `of` names the traced and the untraced connector."""
    from kvtrail.connector.recording.recorder import exporting_to, recorders

    exporters: list[MeasuringExporter] = []

    def exporter() -> MeasuringExporter:
        exporters.append(MeasuringExporter())
        return exporters[-1]

    with exporting_to(exporter):
        levels = ("basic", "detailed")
        sides = {level: Busy(folder, at_a_time, of[0], level, window) for level in levels}
        sides["untraced"] = Busy(folder, at_a_time, of[1], "basic", window)
        orders, spent = cycle(permutations(sides)), {name: list[float]() for name in sides}
        gc.disable()
        for number in range(-8, count):  # until those that began at once have ended
            for name in next(orders):
                gc.collect(1)
                started = time.thread_time()
                sides[name].steps(STEPS)
                if number >= 0:
                    spent[name].append((time.thread_time() - started) / STEPS * 1e6)
                for recorder in recorders():
                    recorder.flush()
                for each in exporters:
                    each.measure()
            if number == -1:
                for each in exporters:
                    each.events = each.bytes = 0
        gc.enable()
        for level, each in zip(levels, exporters, strict=True):
            what = f"{at_a_time} requests at a time, level {level}"
            rounds.print_ratio(what, spent[level], spent["untraced"], "us/step", ("traced", "untraced"))
            steps = count * STEPS
            print(f"  a step: {each.events / steps:.2f} events, {each.bytes / steps:,.0f} bytes")
        executed = {name: side.instructions(5 * STEPS) for name, side in sides.items()}  # requests begin in few of them
        for level in levels:
            more = executed[level] - executed["untraced"]
            print(
                f"  {level}: {more:,.0f} instructions on {executed['untraced']:,.0f} ({more / executed['untraced']:.2%})"
            )


def bare(folder: Path, count: int, *, of_thread: bool) -> None:
    """Steps a second, in one process, in turns of about 50 ms, since a shared machine changes its speed from one second to
    the next. A turn's time is its wall time, and the CPU that it takes to send what it has recorded; or, `of_thread`, the CPU
    of the scheduler's thread."""
    from kvtrail.connector.demo.workload import shared_prefixes
    from kvtrail.connector.recording.recorder import recorders
    from kvtrail.connector.simulate.bare_scheduler import BareScheduler

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
    """Generated tokens a second, and CPU a token, of one engine with a connector that is traced in every other round.

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

    llm = tiny_model.build(folder / "model", {"kv_connector": SIDES[0]}, write=partial(tiny_model.write, layers=layers))
    connectors = [llm.llm_engine.engine_core.engine_core.scheduler.connector, get_kv_transfer_group()]
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    cpu: dict[str, list[float]] = {side: [] for side in SIDES}
    generated_by: dict[str, dict[str, list[int]]] = {}
    jobs = workload.shared_prefixes()
    traced, plain = map(resolve, SIDES)
    overridden = {name for base in (traced, Tracing, TracingHMA) for name in vars(base) if hasattr(plain, name)}
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


def looking(folder: Path, count: int, layers: int, rate: str) -> None:
    """Generated tokens a second, by the clock and of the processor, of one traced engine that looks at the bytes of this
    share of its blocks in every other round; and the share of the thread's CPU that its looks take, by timers."""
    from kvtrail.connector.demo import workload
    from kvtrail.connector.simulate import tiny_model

    tiny_model.prepare_environment()  # before torch is loaded
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    from kvtrail.connector.demo.workload import DemoRequest
    from kvtrail.connector.tracing.block_checks import BlockChecks

    spent = 0.0

    def timed(do: Callable[..., Any]) -> Callable[..., Any]:
        def taken(*args: Any, **named: Any) -> Any:
            nonlocal spent
            started = time.thread_time()
            try:
                return do(*args, **named)
            finally:
                spent += time.thread_time() - started

        return taken

    after, before = BlockChecks._after, BlockChecks._before
    BlockChecks._after = lambda self, call, do: after(self, call, timed(do))  # type: ignore[method-assign]
    BlockChecks._before = lambda self, call, do: before(self, call, timed(do))  # type: ignore[method-assign]
    connector = {
        "kv_connector": SIDES[0],
        "kv_connector_extra_config": {"kvtrail": {"fingerprints": rate}},
    }
    llm = tiny_model.build(folder / "model", connector, write=partial(tiny_model.write, layers=layers))
    objects: list[Any] = [llm.llm_engine.engine_core.engine_core.scheduler.connector, get_kv_transfer_group()]
    wrapped = [{call: vars(each)[call] for call in each._kvtrail_checks.wrapped} for each in objects]
    shares: list[tuple[float, float, float]] = []
    rates: dict[str, dict[bool, list[float]]] = {clock: {True: [], False: []} for clock in ("", " of processor")}
    jobs = workload.shared_prefixes()
    for number in range(count + 1):
        for looks in (True, False) if number % 2 else (False, True):
            for each, calls in zip(objects, wrapped, strict=True):
                for call, looked in calls.items():
                    if looks:
                        setattr(each, call, looked)
                    else:
                        vars(each).pop(call, None)
            llm.reset_prefix_cache()
            named = [DemoRequest(f"{number}-{looks}-{j.id}", j.prompt, j.max_tokens, j.arrives_at_step) for j in jobs]
            gc.collect()
            spent, thread, steps = 0.0, time.thread_time(), objects[0]._kvtrail_checks._step
            started, processor = time.perf_counter(), time.process_time()
            made = sum(map(len, workload.run(llm, named).values()))
            if number and looks:
                took = time.thread_time() - thread
                steps = objects[0]._kvtrail_checks._step - steps
                shares.append((spent / took, spent / steps * 1e6, took / steps * 1e3))
            seconds = {"": time.perf_counter() - started, " of processor": time.process_time() - processor}
            if number:  # the first round warms up
                for clock, each in seconds.items():
                    rates[clock][looks].append(made / each)
            time.sleep(0.6)  # what was recorded leaves now, and not in the next round
    for clock, by_side in rates.items():
        what = f"bytes, fingerprints {rate}, {layers} layers"
        rounds.print_ratio(what, by_side[True], by_side[False], f"tokens/s{clock}", ("looked at", "not looked at"))
    share, looked, step = (sorted(column)[len(column) // 2] for column in zip(*shares, strict=True))
    print(f"  by timers, medians: {looked:.0f} us a step of {step:.1f} ms of the thread's CPU, {share:.2%}")
    llm.llm_engine.engine_core.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["bare", "thread", "running", "engine", "bytes"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--at-a-time", type=int, nargs="+", default=[16, 64, 256], help="requests of `running`")
    parser.add_argument(
        "--offloading", action="store_true", help="of `running`: vLLM's OffloadingConnector instead of ours"
    )
    parser.add_argument(
        "--window", type=int, default=0, help="of `running`: a second KV cache group, with such a window"
    )
    parser.add_argument("--layers", type=int, default=2, help="layers of the engine's model")
    parser.add_argument("--fingerprints", default="all", help="of `bytes`: some or all")
    parser.add_argument("--tracer", choices=["running", "absent", "hung"], default="running")
    arguments = parser.parse_args()
    os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = f"http://127.0.0.1:{GRPC_PORT}"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if arguments.what == "thread":
            from kvtrail.connector.recording.recorder import exporting_to

            stack.enter_context(exporting_to(NullExporter))
        elif arguments.what != "running" and arguments.tracer != "absent":
            process = stack.enter_context(rounds.tracer(folder, GRPC_PORT, HTTP_PORT))
            if arguments.tracer == "hung":
                process.send_signal(signal.SIGSTOP)
        if arguments.what in ("bare", "engine"):
            print(f"tracer: {arguments.tracer}")
        if arguments.what == "engine":
            engine(folder, arguments.rounds, arguments.layers)
        elif arguments.what == "bytes":
            looking(folder, arguments.rounds, arguments.layers, arguments.fingerprints)
        elif arguments.what == "running":
            for at_a_time in arguments.at_a_time:
                sides = OFFLOADING if arguments.offloading else SIDES
                running(folder, arguments.rounds, at_a_time, sides, arguments.window)
        else:
            bare(folder, arguments.rounds, of_thread=arguments.what == "thread")


if __name__ == "__main__":
    main()
