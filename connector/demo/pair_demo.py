"""The demo of two engines: one prefills, the other decodes, and a router stands between them.

With the bug the router is slow with some requests. The lease of the engine that prefills runs out, other prompts take the
blocks, and the engine that decodes reads those: its answers are wrong, and neither engine notices.
"""

from __future__ import annotations

import json
import os
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click
import httpx

from kvtrail.connector.demo import demo, workload
from kvtrail.connector.demo.children import Child, Children
from kvtrail.connector.demo.demo import STALE_HANDOFF, DemoError, Options
from kvtrail.connector.demo.pair import (
    ALONE,
    DECODE,
    ENVIRONMENT,
    PREFILL,
    SLOW_S,
    EngineDied,
    PairedEngine,
    at_once,
    nixl,
    prefilled,
)
from kvtrail.connector.demo.paired_engine import Answer, Pipes
from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.settings import Guard
from kvtrail.connector.simulate.tiny_model import VOCABULARY
from kvtrail.tracer.model import words
from kvtrail.tracer.reports import terminal

LEASE_S = 8
"""The lease that runs out; vLLM's own default is 30 s."""
TOKENS = 330
"""Of a prompt: the pool of an engine holds five of these."""
ALL_TOKENS = 720
"""Of those that overwrite the pool, four in all."""
LATE = 4
"""Requests of a round that are handed on too late."""
GENTLY_S = 5.0
"""Pause between two rounds."""


@dataclass(frozen=True, slots=True)
class Served:
    """A request, and what the engine that decodes has answered; with the bug, whether it was asked too late."""

    job: DemoRequest
    answer: Answer
    late: bool = False


class _Engines:
    """The three engines: the pair, and one alone, for the tokens to compare with."""

    def __init__(self, options: Options, children: Children) -> None:
        self.options = options
        self._children = {name: _start(name, options, children) for name in (PREFILL, DECODE, ALONE)}
        self.prefill, self.decode, self.alone = (
            PairedEngine(name, _channel(child), child.log) for name, child in self._children.items()
        )

    def wait_until_ready(self) -> None:
        for engine in (self.prefill, self.decode, self.alone):
            engine.wait_until_ready()

    @property
    def pair(self) -> list[Child]:
        """The processes of the two."""
        return [self._children[PREFILL], self._children[DECODE]]

    def end(self, *names: str) -> None:
        """Have them end."""
        for engine in (self.decode, self.prefill, self.alone):
            if engine.name in names:
                engine.ask_to_end()
                self._children[engine.name].process.wait(SLOW_S)

    def report_death(self) -> None:
        """Raise the ChildDied of the one that has died."""
        for child in self._children.values():
            if child.process.poll() is not None or child is self._children[ALONE]:
                child.check()

    def decoded(self, job: DemoRequest, params: Mapping[str, Any]) -> Answer:
        return self.decode.ask(job, params).result(SLOW_S)

    def served(self, job: DemoRequest) -> Served:
        """What a router does with a request."""
        return Served(job, self.decoded(job, prefilled(self.prefill, job)))

    def served_late(self, number: int, jobs: Sequence[DemoRequest]) -> list[Served]:
        """The same, slowly: it hands them on when other prompts have been computed into the blocks."""
        params = at_once(lambda job: prefilled(self.prefill, job), jobs)
        while self.prefill.kept():
            time.sleep(0.05)
        for other in [self.prefill.ask(job) for job in _prompts("other", number, 4, ALL_TOKENS)]:
            other.result(SLOW_S)
        return [Served(job, self.decoded(job, each), True) for job, each in zip(jobs, params, strict=True)]

    def one_round(self, number: int, served: Callable[[int], None] = lambda count: None) -> list[Served]:
        """Serve the requests of a round; `served` is called with how many are."""
        if not self.options.bug:
            jobs = [
                replace(job, id=f"r{number}-{job.id}") for job in workload.shared_prefixes(seed=number, requests=12)
            ]
            return at_once(self.served, jobs)
        found: list[Served] = []
        for name, count in (("sound", 2), ("late", LATE), ("more", 2)):
            jobs = _prompts(name, number, count, TOKENS)
            found += self.served_late(number, jobs) if name == "late" else [self.served(job) for job in jobs]
            served(len(found))
        return found


def play(options: Options, children: Children) -> None:
    """Run the demo to its end, or until its children are stopped.

    Raises:
        DemoError, ChildDied: see there.
    """
    with children:
        watched = [*demo.start_servers(options, children)]
        bug = f" and the bug {options.bug!r} (guard: {options.guard})" if options.bug else ""
        click.echo(f"Starting two real vLLM engines on the CPU with vLLM's NixlConnector{bug}: {PREFILL}, {DECODE} ...")
        engines = _Engines(options, children)
        try:
            _play(options, engines, watched)
        except EngineDied as died:
            engines.report_death()
            raise DemoError(str(died)) from died


def _play(options: Options, engines: _Engines, watched: list[Child]) -> None:
    engines.wait_until_ready()
    with terminal.status() as say:
        served = engines.one_round(0, lambda count: say(f"  served: {words.some(count, 'request')}"))
    click.echo(f"  {words.some(len(served), 'request')} served: each prefilled by one engine, decoded by the other.")
    sound = {
        each.id: each for each in at_once(lambda job: engines.alone.ask(job).result(SLOW_S), [s.job for s in served])
    }
    engines.end(ALONE)
    wrong = {each.answer.engine_id for each in served if each.answer.tokens != sound[each.job.id].tokens}
    late = {each.answer.engine_id for each in served if each.late}
    found = demo.waited_for(lambda: _named(options) if late <= _named(options).keys() else {}) or _named(options)
    totals = httpx.get(f"{options.api}/api/overview").json()["totals"]
    click.echo(
        "\nSummary\n"
        f"  requests            {totals['requests']:>9,}   of both engines\n"
        f"  findings            {totals['findings']:>9,}\n"
        f"  wrong answers       {len(wrong):>9,}   of {len(served)}: other tokens than those of one engine alone"
    )
    if options.bug:
        _compare(options, wrong, late, found)
        demo.report_findings(options)
    elif wrong or found:
        raise DemoError("the generated tokens differ from those of one engine alone")
    demo.report_addresses(options)
    if options.once:
        engines.end(PREFILL, DECODE)
        return
    click.echo("The workload repeats gently until Ctrl-C.")
    number = 0
    while True:
        for child in (*watched, *engines.pair):
            child.check()
        time.sleep(GENTLY_S)
        number += 1
        engines.one_round(number)


def _compare(options: Options, wrong: set[str], late: set[str], found: Mapping[str, bool]) -> None:
    """Say which of the wrong answers were named. `found` are those that were, and whether they were healed.

    Raises:
        DemoError: not all of them, or of those that were asked too `late` some were not healed.
    """
    click.echo(f"  named by kvtrail    {len(found):>9,}   as {STALE_HANDOFF}, {sum(found.values())} of them healed")
    if harmless := [each for each, healed in found.items() if each not in wrong and not healed]:
        click.echo(f"  {words.some(len(harmless), 'request')} of these came before anybody had overwritten the blocks.")
    if options.guard == Guard.HEAL:
        if wrong or not all(found.get(each) for each in late):
            raise DemoError("the bug was not healed")
        click.echo("  The generated tokens are the same as those of one engine alone.")
        return
    if not wrong:
        raise DemoError(f"this workload does not bring the bug {options.bug!r} out")
    if unnamed := wrong - found.keys():
        raise DemoError(f"wrong answers were not named: {sorted(unnamed)}")
    click.echo("  Each request with a wrong answer is named, though both engines called it a success.")


def _named(options: Options) -> dict[str, bool]:
    """The requests that the rule names, and whether they were healed."""
    found = httpx.get(f"{options.api}/api/findings", params={"rule": STALE_HANDOFF, "limit": 1000}).json()
    return {each["request"]: each["healed"] == each["count"] for each in found}


def _start(name: str, options: Options, children: Children) -> Child:
    connector = None
    if name != ALONE:
        extra: dict[str, Any] = {"kv_lease_duration": LEASE_S} if options.bug else {}
        connector = nixl(**extra, kvtrail={"guard": options.guard}) | {"kv_load_failure_policy": "recompute"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {
        **os.environ,
        **ENVIRONMENT,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port),
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{options.grpc_port}",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
        "OTEL_SERVICE_NAME": name,
    }
    model = str((options.folder / "model").resolve())  # the same for both: NIXL compares its path
    arguments = ["-m", "kvtrail.connector.demo.paired_engine", json.dumps([model, connector, False])]
    return children.start(f"engine {name}", arguments, log=options.folder / f"{name}.log", env=env, piped=True)


def _channel(child: Child) -> Pipes:
    process = child.process
    assert process.stdout is not None
    assert process.stdin is not None
    return Pipes(os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()))


def _prompts(name: str, number: int, count: int, length: int) -> list[DemoRequest]:
    """Requests of one length that have nothing in common with others."""
    rng = random.Random(f"{name} {number}")
    tokens = [tuple(rng.randrange(3, VOCABULARY) for _ in range(length)) for _ in range(count)]
    return [DemoRequest(f"r{number}-{name}-{n}", prompt, 24) for n, prompt in enumerate(tokens)]
