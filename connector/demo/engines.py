"""The engines of a demo, each with its role, and the rounds of requests that they serve.

A single engine prefills and decodes, with the OffloadConnector. Of two engines, one prefills and one decodes, with a router
between them. With the bug, the router is slow with some requests: the lease of the prefill engine expires, other prompts
overwrite the blocks, and the decoding engine reads these. Its answers are wrong, and neither engine notices.
"""

from __future__ import annotations

import json
import os
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from kvtrail.connector.demo import workload
from kvtrail.connector.demo.children import PATIENCE_S, Child, Children
from kvtrail.connector.demo.engine_process import Answer
from kvtrail.connector.demo.options import Options
from kvtrail.connector.demo.pair import (
    ALONE,
    DECODE,
    ENVIRONMENT,
    PREFILL,
    SLOW_S,
    AskedEngine,
    at_once,
    nixl,
    prefilled,
)
from kvtrail.connector.demo.workload import DemoRequest
from kvtrail.connector.simulate.tiny_model import VOCABULARY

BOTH = "both"
"""The role of an engine that prefills and decodes. `ALONE` has no connector: its tokens are the reference."""
NAMES = {BOTH: "engine", ALONE: "plain engine", PREFILL: "engine prefill", DECODE: "engine decode"}
HOST_BYTES = 64 * 2**20
"""Bytes of the OffloadConnector's host memory: plenty for the demo's model."""
PASSES = 2
"""Number of times that a round of one engine sends the same prompts. Its prefix cache is reset before each pass, so the
second pass loads from the host."""
LEASE_S = 8
"""The lease that expires, in seconds; vLLM's own default is 30 s."""
TOKENS = 330
"""Tokens of a prompt; the block pool of an engine holds five such prompts."""
ALL_TOKENS = 720
"""Tokens of each of the four prompts that overwrite the pool."""
LATE = 4
"""Number of requests of a round that are handed on too late."""


@dataclass(frozen=True, slots=True)
class Served:
    """A request, and the tokens that were generated.

    Attributes:
        engine_id: vLLM's own id of it, on the engine that decodes.
        late: whether the router called that engine too late, by the bug of two engines.
    """

    job: DemoRequest
    tokens: tuple[int, ...]
    engine_id: str = ""
    late: bool = False


class Engines:
    """The engines' processes."""

    def __init__(self, options: Options, children: Children) -> None:
        roles = [PREFILL, DECODE] if options.pd else [BOTH]
        if options.pd or options.is_safe:
            roles.append(ALONE)
        self._options = options
        started = {role: _start(role, options, children) for role in roles}
        self._children = {role: child for role, (child, _) in started.items()}
        self._engines = {role: AskedEngine(child.name, ours, child.log) for role, (child, ours) in started.items()}

    @property
    def children(self) -> list[Child]:
        """The processes that have not been ended."""
        return list(self._children.values())

    def end(self, *roles: str) -> None:
        """End the engines with these roles, if there are any."""
        for role in roles:
            if (child := self._children.pop(role, None)) is not None:
                self._engines[role].ask_to_end()
                child.process.wait(SLOW_S)

    def check(self) -> None:
        """Raise the ChildDied of a dead engine, if necessary after a short wait, since its pipes close first."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and all(child.process.poll() is None for child in self.children):
            time.sleep(0.05)
        for child in self.children:
            child.check()

    def one_round(self, number: int, served: Callable[[int], None] = lambda count: None) -> list[Served]:
        """Serve the requests of a round; `served` is called with the number of served requests.

        Raises:
            EngineDied: an engine has died.
        """
        return self._routed(number, served) if self._options.pd else self._passes(BOTH, number, served)

    def alone(self, served: Sequence[Served]) -> list[tuple[int, ...]]:
        """The tokens that the engine without a connector generates for the requests of the first round."""
        if not self._options.pd:
            return [each.tokens for each in self._passes(ALONE, 0)]
        answers = at_once(lambda job: self._engines[ALONE].ask(job).result(SLOW_S), [each.job for each in served])
        return [answer.tokens for answer in answers]

    def _passes(self, role: str, number: int, served: Callable[[int], None] = lambda count: None) -> list[Served]:
        """Serve one round on an engine. The bug's workload has new prompts in each round: vLLM does not preempt a request
        whose prefix is loaded at once."""
        jobs = workload.stale_lookup(seed=number) if self._options.bug else workload.shared_prefixes()
        engine, found = self._engines[role], list[Served]()

        def on_progress(done: int) -> None:
            served(len(found) + done)

        for part in range(PASSES):
            named = [replace(job, id=f"r{number + 1}p{part + 1}-{job.id}") for job in jobs]
            engine.forget()
            tokens = engine.run_all(named, on_progress).result()
            found += [Served(job, tuple(tokens[job.id])) for job in named]
        return found

    def _routed(self, number: int, served: Callable[[int], None]) -> list[Served]:
        """A round of two engines."""
        if not self._options.bug:
            jobs = workload.shared_prefixes(seed=number, requests=12)
            return at_once(self._handed_over, [replace(job, id=f"r{number}-{job.id}") for job in jobs])
        found: list[Served] = []
        for name, count in (("sound", 2), ("late", LATE), ("more", 2)):
            jobs = _prompts(name, number, count, TOKENS)
            found += self._handed_over_late(number, jobs) if name == "late" else map(self._handed_over, jobs)
            served(len(found))
        return found

    def _handed_over(self, job: DemoRequest) -> Served:
        """Handle a request like a router."""
        return self._decoded(job, prefilled(self._engines[PREFILL], job))

    def _handed_over_late(self, number: int, jobs: Sequence[DemoRequest]) -> list[Served]:
        """Handle requests like a slow router, which hands them on after other prompts have overwritten the blocks."""
        prefill = self._engines[PREFILL]
        params = at_once(lambda job: prefilled(prefill, job), jobs)
        while prefill.kept():
            time.sleep(0.05)
        for other in [prefill.ask(job) for job in _prompts("other", number, 4, ALL_TOKENS)]:
            other.result(SLOW_S)
        return [replace(self._decoded(job, each), late=True) for job, each in zip(jobs, params, strict=True)]

    def _decoded(self, job: DemoRequest, params: Mapping[str, Any]) -> Served:
        answer: Answer = self._engines[DECODE].ask(job, params).result(SLOW_S)
        return Served(job, answer.tokens, answer.engine_id)


def _connector(role: str, options: Options) -> dict[str, Any] | None:
    """The `kv_transfer_config` of a role."""
    if role == ALONE:
        return None
    if role == BOTH:
        return {
            "kv_connector": f"Faulty:{options.bug}:OffloadConnector" if options.bug else "OffloadConnector",
            "kv_connector_module_path": "kvtrail.connector",
            "kv_connector_extra_config": {
                "cpu_bytes_to_use": HOST_BYTES,
                "kvtrail": {"guard": options.guard, "level": "detailed", "fingerprints": "all"},
            },
        }
    lease: dict[str, Any] = {"kv_lease_duration": LEASE_S} if options.bug else {}
    return nixl(**lease, kvtrail={"guard": options.guard}) | {"kv_load_failure_policy": "recompute"}


def _start(role: str, options: Options, children: Children) -> tuple[Child, Connection]:
    service = role if options.pd else os.environ.get("OTEL_SERVICE_NAME", "vllm-demo")
    env = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{options.grpc_port}",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
        "OTEL_SERVICE_NAME": service,
    }
    if options.pd:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            env |= {**ENVIRONMENT, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free.getsockname()[1])}
    metrics_port = options.metrics_port or 0 if role == BOTH else 0
    model = str((options.folder / "model").resolve())  # the same for both: NIXL compares its path
    ours, theirs = Pipe()
    order = [theirs.fileno(), model, _connector(role, options), options.is_hybrid, metrics_port]
    name = NAMES[role]
    child = children.start(
        name,
        ["-m", "kvtrail.connector.demo.engine_process", json.dumps(order)],
        log=options.folder / f"{name.replace(' ', '-')}.log",
        env=env,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()  # so that the end of the process is seen
    return child, ours


def _prompts(name: str, number: int, count: int, length: int) -> list[DemoRequest]:
    """Requests of one length that share no prefix with others."""
    rng = random.Random(f"{name} {number}")
    tokens = [tuple(rng.randrange(3, VOCABULARY) for _ in range(length)) for _ in range(count)]
    return [DemoRequest(f"r{number}-{name}-{n}", prompt, 24) for n, prompt in enumerate(tokens)]
