"""A scenario: everything that a run on the bare scheduler depends on, as data. The same scenario always gives the same run.

A prompt is a list of segments instead of tokens: prompts that begin with the same segments share a prefix, and a scenario of
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
"""Engine arguments that are not numbers, but name neither a module nor a model."""
FIRST_TOKEN = 3
"""Smaller ids are special tokens of the tiny model."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request.

    Attributes:
        id: a request with an id that was used before arrives only after the earlier request has ended.
        prompt: the segments of its prompt.
        max_tokens: number of tokens that it generates.
        at_step: the scheduling step before which it arrives.
        priority: requests with smaller numbers come first, if the scheduler's policy is `priority`.
        output: the segments that it generates; further tokens are drawn at random.
        salt, adapter: cache salt and LoRA adapter; equal tokens with another salt or adapter have different KV.
        handed_on: whether another engine should load its KV after its end, as in disaggregated prefilling.
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
    """The state of a request on which an abort or a reset depends."""

    MATCHED = "matched"
    """It waits, and its last lookup found tokens."""
    DEFERRED = "deferred"
    """It waits, and its last lookup was answered 'ask me later'."""
    LOADING = "loading"
    """Its asynchronous load is under way."""
    PREEMPTED = "preempted"
    FAILED = "failed"
    """A load that it waited for has failed, or one whose blocks its last step read."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort a request before a step; with `when`, before the first step from then on in which it is in that state."""

    id: str
    at_step: int
    when: When | None = None


@dataclass(frozen=True, slots=True)
class CachesReset:
    """Reset vLLM's prefix cache before a step.

    Attributes:
        at_step: the step.
        running: preempt running requests, and wait for the first step in which nothing else holds blocks, since vLLM raises
            otherwise. Without this, vLLM refuses the reset while a request holds blocks.
        connector: also reset the connector's cache.
        prefix_cache: if false, reset only the connector's cache.
        when: from `at_step` on, wait until a request is in this state.
    """

    at_step: int
    running: bool = False
    connector: bool = False
    prefix_cache: bool = True
    when: When | None = None


@dataclass(frozen=True, slots=True)
class Workers:
    """How the fake workers behave.

    Attributes:
        latest_steps: number of steps within which a transfer ends, in random order; 0 for at once.
        load_failures: the share of loads that fail and are reported as failed.
        seed: the seed of their random choices.
        ends: the names of certain transfers (see `job` and `wait`), and the steps in which they end.
        fails: the names of loads that fail, as `wait` builds them from the request and the number of its load, and the first
            block of the load that fails.
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
    """The stage of a request at which its client disconnects."""

    PREFILLING = "prefilling"
    HANDED_OVER = "handed over"
    """The prefill engine has finished it, and the router has not yet sent it to the decoding engine."""
    QUEUED = "queued"
    """In the decoding engine's queue."""
    LOADING = "loading"
    DECODING = "decoding"


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request, to both engines.

    Attributes:
        id: the client's id; engines append a suffix of their own.
        at_tick: the tick before which the router sends it to the prefill engine.
        kept_ticks: number of ticks for which the router then keeps that engine's answer.
        leaves: the stage at which its client disconnects; None if it does not.
    """

    id: str
    prompt: tuple[Segment, ...]
    max_tokens: int = 4
    at_tick: int = 0
    kept_ticks: int = 0
    leaves: Point | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The part of a scenario that exists only with two engines: a prefill engine hands over to a decoding engine.

    Attributes:
        requests: requests of clients, to both engines.
        decodes: further requests to the decoding engine; their steps are ticks.
        prefill_every, decode_every: number of ticks per step of each engine.
        decode_blocks: number of KV blocks of the decoding engine.
        tick_s: length of a tick in seconds, for leases.
        lease_s: lease of the KV that is handed over, in seconds.
        prefill_ranks, decode_ranks: number of tensor-parallel ranks of each engine.
        network: the network between them.
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
        arrivals, aborts, resets: the requests and events, by scheduling step; with two engines, those of the prefill engine.
        num_blocks: number of KV blocks of the pool, with the null block.
        block_size: tokens per block.
        drafts: number of speculative tokens per step; a random part of them is rejected.
        groups: the model's KV cache groups, as a recorder declares them, with one layer each. A group without a block size
            has blocks of `block_size` tokens. Without groups, all layers are one group of full attention.
        settings: further vLLM engine arguments.
        workers: the behavior of the connector's workers.
        recompute: vLLM's `kv_load_failure_policy`: whether it computes tokens that could not be loaded, or ends the request.
        seed: the seed of the generated tokens.
        most_steps: number of steps after which the run ends, even if requests are unfinished.
        pair: the decoding engine and the network; None for a single engine.
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
        """All requests; with two engines, those that are handed over come first."""
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
    """Raise ValueError for an engine argument that could name a module or a model: a file must not choose code."""
    for name, value in settings.items():
        if not isinstance(value, int | float) and (name, value) not in _HARMLESS:
            raise ValueError(f"setting {name} is neither a number nor a truth value")


def tokens(segments: Iterable[Segment]) -> list[int]:
    """The token ids of these segments."""
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
