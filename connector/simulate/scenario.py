"""A scenario: everything that a run on the bare scheduler depends on, as data. The same scenario always runs in the same way.

A prompt is a list of segments, not of tokens: prompts that begin with the same segments share a prefix, and a scenario of
thousands of tokens stays readable.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from typing import Any, Self

import msgspec

from kvtrail.connector.known.nixl.stand_in.network import Schedule
from kvtrail.connector.simulate.tiny_model import BLOCK_SIZE, VOCABULARY
from kvtrail.tracer.events.cache_groups import CacheGroup, declared

Segment = tuple[str, int]
"""A seed, and the number of tokens drawn from it: segments of the same seed begin with the same tokens."""
KV_EVENTS = {"kv_events_config": {"enable_kv_cache_events": True, "publisher": "null"}}
"""Engine arguments with which the scheduler takes a connector's KV events, and publishes none."""
_HARMLESS = (("scheduling_policy", "fcfs"), ("scheduling_policy", "priority"), *KV_EVENTS.items())
"""Engine arguments that are no numbers, and name neither a module nor a model."""
FIRST_TOKEN = 3
"""Smaller ids are special tokens of the tiny model."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request.

    Attributes:
        id: an id that was used before is used again once the earlier request has left.
        prompt: its segments.
        max_tokens: how many tokens it generates.
        at_step: it arrives before this scheduling step.
        priority: smaller goes first, if the scheduler's policy is `priority`.
        output: what it generates; further tokens are drawn at random.
        salt, adapter: equal tokens with another cache salt or another LoRA adapter have other KV.
        handed_on: another engine is to load its KV when it has ended, as in disaggregated prefilling.
    """

    id: str
    prompt: tuple[Segment, ...]
    max_tokens: int = 1
    at_step: int = 0
    priority: int = 0
    output: tuple[Segment, ...] = ()
    salt: str = ""
    adapter: str = ""
    handed_on: bool = False

    @property
    def length(self) -> int:
        """Tokens of the prompt."""
        return sum(count for _, count in self.prompt)


class When(StrEnum):
    """A state of a request for which an abort or a reset waits."""

    MATCHED = "matched"
    """It waits, and its last lookup found tokens."""
    DEFERRED = "deferred"
    """It waits, and its last lookup was answered 'ask me later'."""
    LOADING = "loading"
    """Its asynchronous load is under way."""
    PREEMPTED = "preempted"
    FAILED = "failed"
    """A load has failed that it waited for, or whose blocks its last step has read."""


@dataclass(frozen=True, slots=True)
class Abort:
    """A request is aborted before a step, or, with `when`, before the first one from then on at which it is in that state."""

    id: str
    at_step: int
    when: When | None = None


@dataclass(frozen=True, slots=True)
class CachesReset:
    """vLLM's prefix cache is reset before a step. `running` preempts running requests for it, and waits for the first step at
    which nobody else holds blocks, since vLLM raises otherwise; `connector` resets the connector's cache as well; with
    neither, nothing happens while a request holds blocks. Without `prefix_cache` only the
    connector's cache is reset. With `when`, it waits from then on until some request is in that state."""

    at_step: int
    running: bool = False
    connector: bool = False
    prefix_cache: bool = True
    when: When | None = None


@dataclass(frozen=True, slots=True)
class Workers:
    """How the fake workers behave.

    Attributes:
        latest_steps: a transfer ends within this many steps; the order is random. 0: at once.
        load_failures: the share of loads that fail and are reported.
        seed: of their choices.
        ends: the steps in which certain transfers end; see `job` and `wait`.
        fails: loads that fail, as `wait` names them by the request and the number of its load, and the first of the load's
            blocks that fails.
    """

    latest_steps: int = 4
    load_failures: float = 0.0
    seed: int = 0
    ends: tuple[tuple[str, int], ...] = ()
    fails: tuple[tuple[str, int], ...] = ()


def job(number: Hashable) -> str:
    """The name of a numbered transfer in `Workers.ends`."""
    return f"#{number}"


def wait(request_id: str, number: int) -> str:
    """The name in `Workers.ends` of the end of a request's load or of holding its blocks; `number` counts from 0."""
    return f"{request_id}/{number}"


class Point(StrEnum):
    """Where a request is when its client disconnects."""

    PREFILLING = "prefilling"
    HANDED_OVER = "handed over"
    """The engine that prefills has ended it, and the router has not yet asked the other one."""
    QUEUED = "queued"
    """In the other engine's queue."""
    LOADING = "loading"
    DECODING = "decoding"


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request, to both engines.

    Attributes:
        id: the client's; engines append a suffix of their own.
        at_tick: the router asks the engine that prefills before this tick.
        kept_ticks: how long it then keeps what that engine returns.
        leaves: where its client disconnects, if it does.
    """

    id: str
    prompt: tuple[Segment, ...]
    max_tokens: int = 4
    at_tick: int = 0
    kept_ticks: int = 0
    leaves: Point | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What a scenario of two engines has besides: the one that prefills hands over to one that decodes.

    Attributes:
        requests: of clients, to both engines.
        decodes: what else the engine that decodes is asked; steps are ticks.
        prefill_every, decode_every: how many ticks there are for one step of each.
        decode_blocks: of the pool of the engine that decodes.
        tick_s: seconds of a tick, for leases.
        lease_s: the lease of what is handed over.
        prefill_ranks, decode_ranks: tensor-parallel ranks of each engine.
        network: between them.
    """

    requests: tuple[Request, ...]
    decodes: tuple[Arrival, ...] = ()
    prefill_every: int = 1
    decode_every: int = 1
    decode_blocks: int = 48
    tick_s: float = 0.1
    lease_s: int = 30
    prefill_ranks: int = 1
    decode_ranks: int = 1
    network: Schedule = field(default_factory=Schedule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A workload of one engine or of two, the scheduler's settings, and how the workers behave.

    Attributes:
        arrivals, aborts, resets: what happens, by scheduling step; of two engines, in the one that prefills.
        num_blocks: KV blocks of the pool, the null block included.
        block_size: tokens per block.
        drafts: speculative tokens per step; a random part of them is rejected.
        groups: the model's KV cache groups, a layer each, as a recorder declares them; a block that says nothing of its size
            has `block_size` tokens. None: all layers are one group of full attention.
        settings: further vLLM engine arguments.
        workers: of the connector.
        recompute: vLLM's `kv_load_failure_policy`: it computes what could not be loaded, or ends the request.
        seed: of the model's tokens.
        most_steps: the run ends here, even if requests are unfinished.
        pair: the second engine, and what lies between both; None if there is one.
    """

    arrivals: tuple[Arrival, ...] = ()
    aborts: tuple[Abort, ...] = ()
    resets: tuple[CachesReset, ...] = ()
    num_blocks: int = 64
    block_size: int = BLOCK_SIZE
    drafts: int = 0
    groups: tuple[CacheGroup, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    workers: Workers = Workers()
    recompute: bool = True
    seed: int = 0
    most_steps: int = 20_000
    pair: Pair | None = None

    @property
    def everybody(self) -> tuple[Request | Arrival, ...]:
        """All requests: of two engines, first those that one of them hands over."""
        return self.arrivals if self.pair is None else (*self.pair.requests, *self.arrivals, *self.pair.decodes)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready data, without fields that have their default."""
        return _sparse(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The scenario that `as_dict` gave, also after a round trip through JSON.

        Raises:
            ValueError: the data is no scenario; the text says why.
        """
        try:
            if unknown := data.keys() - {each.name for each in fields(cls)}:
                raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
            groups = tuple(CacheGroup(**each) for each in data.get("groups", ()))
            made = replace(msgspec.convert({**data, "groups": ()}, cls), groups=groups)
            _refuse_texts(made.settings)
        except (TypeError, AttributeError, ValueError) as wrong:
            raise ValueError(f"not a scenario: {wrong}") from wrong
        return made


def _refuse_texts(settings: Mapping[str, Any]) -> None:
    """Raise ValueError for an engine argument that could name a module or a model: a file never chooses code."""
    for name, value in settings.items():
        if not isinstance(value, int | float) and (name, value) not in _HARMLESS:
            raise ValueError(f"setting {name} is neither a number nor a truth value")


def tokens(segments: Iterable[Segment]) -> list[int]:
    """The token ids that segments stand for."""
    drawn: list[int] = []
    for seed, count in segments:
        rng = random.Random(seed)
        drawn += [rng.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(count)]
    return drawn


def _sparse(thing: Any) -> dict[str, Any]:
    """A dataclass as JSON-ready data, without fields that have their default."""
    kept: dict[str, Any] = {}
    for each in fields(thing):
        value = getattr(thing, each.name)
        if value != (each.default if each.default_factory is MISSING else each.default_factory()):
            kept[each.name] = _plain(value)
    return kept


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return _sparse(value)
    if isinstance(value, CacheGroup):
        return declared((value,))[0]
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, StrEnum) else value
