"""The causes of a run on the bare scheduler, from what vLLM's pool and the connector's store hold at each moment: what the
recording does not contain is seen here. Nothing of it is shared with `kvtrail.tracer.causes`."""

from __future__ import annotations

import math
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kvtrail.connector.simulate import in_memory
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.simulate.run import drive
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.tracer.events.cache_groups import FULL
from kvtrail.tracer.events.events import Alloc, Event, Lookup
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.facts import Breakdown

Span = tuple[str, str, int, int, frozenset[int]]
"""A cause, its tier (`gpu` or `store`), tokens from the first to before the last, and of several KV cache groups those
that had lost their part first, or never had it."""
NONE: frozenset[int] = frozenset()


@dataclass(slots=True)
class Admission:
    """What an allocation found, by the reference.

    Attributes:
        request: vLLM's object.
        epoch: its preemptions.
        spans: its tokens by cause.
        promised: the tokens that the connector is to load.
        number: the recorder's number of its allocation.
        is_over: whether a later admission of the same epoch took its place.
    """

    request: Any
    epoch: int
    spans: list[Span]
    promised: tuple[int, int]
    total: int
    number: int = -1
    is_over: bool = False


@dataclass(slots=True)
class _Cache:
    """What a KV cache group has in a cache, and when it came and went.

    Attributes:
        held: what it has.
        lost: of what it lost, when, and whether by a reset.
        gained: of all that it ever had, when it came last.
    """

    held: set[bytes] = field(default_factory=set)
    lost: dict[bytes, tuple[int, str]] = field(default_factory=dict)
    gained: dict[bytes, int] = field(default_factory=dict)

    def see(self, held: set[bytes], moment: int, how: str) -> None:
        self.lost.update(dict.fromkeys(self.held - held, (moment, how)))
        self.gained.update(dict.fromkeys(held - self.held, moment))
        self.held = held

    def copy(self) -> _Cache:
        return _Cache(self.held, dict(self.lost), dict(self.gained))


Needs = Callable[[int, int], Sequence[bytes]]
"""The keys of a KV cache group, by its number, that a hit needs which ends with a unit of a prompt; of full attention those
of this unit."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What a cache has of a unit of a prompt: it is `held`, `lost`, `uncached` (a group never had its part) or `never` there.

    Attributes:
        moment: when it was lost, or when full attention had it.
        how: by a reset, or evicted.
        groups: those that had lost it first, or never had it.
        lacking: the keys that are not there.
    """

    state: str
    moment: int = 0
    how: str = ""
    groups: frozenset[int] = NONE
    lacking: frozenset[bytes] = NONE  # type: ignore[assignment]  # nothing is in it


def _look(caches: Sequence[_Cache], dense: Sequence[int], needs: Needs, units: range) -> tuple[list[_Found], int]:
    """What a cache has of these units of a prompt, and how many of them, from the first on, a hit can have. `dense` are the
    groups of full attention."""
    sparse = [group for group in range(len(caches)) if group not in dense]
    own = {unit: [(group, key) for group in dense for key in needs(group, unit)] for unit in units}
    kept = {unit: [(group, key) for group in sparse for key in needs(group, unit)] for unit in units}
    found: list[_Found] = []
    for unit in units:
        if any(key not in caches[group].gained for group, key in own[unit]):
            found.append(_Found("never"))
            continue
        end = unit
        while end in own and all(key in caches[group].gained for group, key in own[end]):
            if all(key in caches[group].gained for group, key in kept[end]):
                break
            end += 1
        else:
            end = -1
        wanted = own[unit] if end < 0 else [each for some in range(unit, end + 1) for each in own[some]] + kept[end]
        lacking = [(*caches[group].lost[key], group, key) for group, key in wanted if key not in caches[group].held]
        if lacking:
            moment, how, *_ = min(lacking)
            groups = frozenset(group for at, _, group, _ in lacking if at == moment)
            found.append(_Found("lost", moment, how, groups, frozenset(key for *_, key in lacking)))
        elif end < 0:
            moment = max(caches[group].gained[key] for group, key in own[unit])
            groups = frozenset(group for group, key in kept[unit] if key not in caches[group].gained)
            found.append(_Found("uncached", moment, "uncached", groups))
        else:
            found.append(_Found("held"))
    hit = 0
    for number, unit in enumerate(units, start=1):
        if any(key not in caches[group].held for group, key in own[unit]):
            break
        if all(key in caches[group].held for group, key in kept[unit]):
            hit = number
    return [_Found("held")] * hit + found[hit:], hit


class _AllCached:
    """A block pool that has every block, and notes for which ones vLLM's lookup asks."""

    null_block = None

    def __init__(self, hash_block_size: int) -> None:
        self.hash_block_size = hash_block_size
        self.asked: list[bytes] = []

    def get_cached_block(self, key: Any, groups: Sequence[int]) -> list[object]:
        self.asked.append(bytes(key))
        return [object() for _ in groups]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A lookup: the tokens that vLLM held, and what all caches held."""

    computed: int
    vllm: Sequence[_Cache]
    store: Sequence[_Cache]
    storing: set[bytes]


class StoreView:
    """What a connector's store holds, by the hashes of its chunks' last blocks."""

    def __init__(self, connector: Any, chunk_size: int, *, from_start: bool) -> None:
        """`from_start`: its lookups look at all of a prompt's chunks, and not only behind what vLLM holds."""
        self.connector, self.chunk_size, self.from_start = connector, chunk_size, from_start

    def held(self) -> Sequence[set[bytes]]:
        """Chunks that can be loaded, by KV cache group."""
        raise NotImplementedError

    ends_early = False
    """Whether a hit ends with a chunk before the last token of a prompt."""

    def is_dense(self, group: int) -> bool:
        """Whether a hit needs all of a group."""
        return True

    def needs(self, hashes: Sequence[Any], size: int, first: int) -> Needs:
        """What a load behind `first` chunks needs; `hashes` are of this number of tokens each."""
        return lambda group, chunk: [self.key(hashes, size, chunk)]

    def key(self, hashes: Sequence[Any], size: int, chunk: int) -> bytes:
        """The hash of a chunk's last block."""
        return bytes(hashes[(chunk + 1) * self.chunk_size // size - 1])

    def storing(self) -> set[bytes]:
        """Chunks that are being stored."""
        return set()

    def asked(self, request: Any) -> None:
        """A lookup for this request comes."""


class OffloadView(StoreView):
    """kvtrail's OffloadConnector."""

    def __init__(self, connector: Any, chunk_size: int, managers: Sequence[Any]) -> None:
        """`managers` are those of vLLM's groups."""
        super().__init__(connector, chunk_size, from_start=True)
        self._managers, self._scheduler = managers, connector._scheduler
        self._groups = self._scheduler._config.groups
        self.ends_early = any(group.cache.kind != FULL for group in self._groups)

    def held(self) -> Sequence[set[bytes]]:
        """By the hash of their chunk, and how far before its end they begin."""
        if len(self._groups) == 1:
            return [set(self.connector._scheduler.held_keys())]
        held: list[set[bytes]] = []
        for number, group in enumerate(self._groups):
            rows = self._scheduler._config.rows[number]
            ends = [((rows - row) * group.block_size).to_bytes(2, "big") for row in range(rows)]
            held.append(
                {
                    bytes(key) + end
                    for key, slot in self._scheduler._index._slot.items()
                    for end in ends[self._scheduler._lacking[slot][number] :]
                }
            )
        return held

    def is_dense(self, group: int) -> bool:
        return bool(self._groups[group].cache.kind == FULL)

    def needs(self, hashes: Sequence[Any], size: int, first: int) -> Needs:
        if len(self._groups) == 1:
            return super().needs(hashes, size, first)

        def needs(group: int, chunk: int) -> Sequence[bytes]:
            """Those blocks that vLLM would not drop."""
            end, block = (chunk + 1) * self.chunk_size, self._groups[group].block_size
            seen = (
                chunk * self.chunk_size if self.is_dense(group) else self._managers[group].get_num_skipped_tokens(end)
            )
            begins = range(max(0, seen) // block * block, end, block)
            return [
                self.key(hashes, size, at // self.chunk_size)
                + (self.chunk_size - at % self.chunk_size).to_bytes(2, "big")
                for at in begins
            ]

        return needs


class OffloadingView(StoreView):
    """vLLM's OffloadingConnector."""

    def _chunks(self) -> Iterable[tuple[bytes, Any]]:
        policy = self.connector.connector_scheduler.manager._policy
        return list(policy.chunks.items())

    def held(self) -> Sequence[set[bytes]]:
        configs = self.connector.connector_scheduler.config.kv_group_configs
        held: list[set[bytes]] = [set() for _ in configs]
        for key, chunk in self._chunks():
            if chunk.is_ready:
                held[int.from_bytes(bytes(key)[-4:], "big")].add(bytes(key)[:-4])
        return held

    def storing(self) -> set[bytes]:
        return {bytes(key)[:-4] for key, chunk in self._chunks() if not chunk.is_ready}

    def is_dense(self, group: int) -> bool:
        return self._window(group) is None

    def needs(self, hashes: Sequence[Any], size: int, first: int) -> Needs:
        def needs(group: int, chunk: int) -> Sequence[bytes]:
            begin = max(first, chunk + 1 - (self._window(group) or 1))
            return [self.key(hashes, size, each) for each in range(begin, chunk + 1)]

        return needs

    def _window(self, group: int) -> int | None:
        """How many chunks before its end a hit needs of a group; None: all."""
        size: int | None = self.connector.connector_scheduler.config.kv_group_configs[
            group
        ].sliding_window_size_in_chunks
        return size


class Reference:
    """Watches a run.

    Attributes:
        admissions: in their order.
    """

    def __init__(self, scheduler: Any, block_size: int, view: StoreView) -> None:
        from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

        self._scheduler, self._view = scheduler, view
        self._size = block_size
        specs = [group.kv_cache_spec for group in scheduler.kv_cache_config.kv_cache_groups]
        self._groups, self._unit = (
            len(specs),
            math.lcm(*[spec.block_size for spec in specs]) if specs[1:] else block_size,
        )
        self._has_states = any(isinstance(spec, MambaSpec) for spec in specs)
        self._is_dense = [len(specs) == 1 or isinstance(spec, FullAttentionSpec) for spec in specs]
        self._pool = scheduler.kv_cache_manager.block_pool
        self._map = self._pool.cached_block_hash_to_block
        self._vllm = [_Cache() for _ in range(self._groups)]
        self._store = [_Cache() for _ in view.held()]
        self._moment = 0
        self._is_reset = False
        self._asked: dict[str, _Asked] = {}
        self.admissions: list[Admission] = []
        connector = scheduler.connector
        for name, after in (
            ("get_num_new_matched_tokens", self._looked_up),
            ("update_state_after_alloc", self._allocated),
        ):
            setattr(connector, name, self._around(getattr(connector, name), after))
        for name in ("build_connector_meta", "update_connector_output", "reset_cache"):
            setattr(connector, name, self._around(getattr(connector, name), self._changed))

    def _around(self, call: Callable[..., Any], after: Callable[..., None]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            self._see()
            answer = call(*arguments)
            after(answer, *arguments)
            return answer

        watched.__name__ = call.__name__
        return watched

    def _changed(self, answer: Any, *arguments: Any) -> None:
        self._is_reset = not arguments and answer is not False
        self._see()
        self._is_reset = False

    def _see(self) -> None:
        """Look at both caches."""
        from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id

        self._moment += 1
        now = self._pool.cached_block_hash_to_block
        groups: list[set[bytes]] = [set() for _ in range(self._groups)]
        for key in now._cache:
            groups[get_group_id(key)].add(bytes(get_block_hash(key)))
        for cache, held in zip(self._vllm, groups, strict=True):
            cache.see(held, self._moment, "evicted" if now is self._map else "reset")
        self._map = now
        for cache, held in zip(self._store, self._view.held(), strict=True):
            cache.see(held, self._moment, "reset" if self._is_reset else "evicted")

    def stepped(self) -> None:
        """A step has ended."""
        self._see()
        for each in self.admissions[-64:]:
            request, (begin, end) = each.request, each.promised
            if end == begin or each.is_over or request.num_preemptions != each.epoch or request.is_finished():
                continue
            if request.num_computed_tokens < min(end, each.total - 1):
                self._fail(each, request.num_computed_tokens)

    def _fail(self, admission: Admission, computed: int) -> None:
        """Only the tokens up to `computed` were loaded."""
        spans: list[Span] = []
        for cause, tier, start, end, groups in admission.spans:
            if cause == "loaded" and end > computed:
                spans += [
                    ("loaded", tier, start, max(start, computed), NONE),
                    ("failed-load", tier, max(start, computed), end, NONE),
                ]
            else:
                spans.append((cause, tier, start, end, groups))
        admission.spans = [span for span in spans if span[3] > span[2]]
        admission.promised = (computed, computed)

    def _looked_up(self, answer: Any, request: Any, computed: int) -> None:
        self._view.asked(request)
        self._asked[request.request_id] = _Asked(
            computed,
            [cache.copy() for cache in self._vllm],
            [cache.copy() for cache in self._store],
            self._view.storing(),
        )

    def _allocated(self, answer: Any, request: Any, blocks: Any, external: int) -> None:
        asked = self._asked.pop(request.request_id, None)
        if asked is None:
            return  # the second allocation after an asynchronous load
        lost = (0, 0)
        for each in self.admissions[-64:]:
            if each.request is request and each.epoch == request.num_preemptions:
                lost = next(((s, e) for cause, _, s, e, _ in each.spans if cause == "failed-load"), lost)
                each.is_over = True
        computed, total = asked.computed, request.num_tokens
        spans = self._spans(request, external, asked, lost)
        self.admissions.append(
            Admission(request, request.num_preemptions, spans, (computed, computed + external), total)
        )

    def _needs(self, hashes: Sequence[Any]) -> Needs:
        """What vLLM's cache must have: that for which vLLM's own lookup asks, where it finds all."""
        if self._groups == 1:
            return lambda group, unit: [bytes(hashes[unit])]
        coordinator = self._scheduler.kv_cache_manager.coordinator
        by_group = {group: each for each in coordinator.attention_groups for group in each.group_ids}

        def needs(group: int, unit: int) -> Sequence[bytes]:
            end, pool = (unit + 1) * self._unit, _AllCached(self._size)
            spec, _, manager, _ = by_group[group]
            manager.find_longest_cache_hit(
                block_hashes=hashes[: end // self._size], max_length=end, kv_cache_group_ids=[group], block_pool=pool,
                kv_cache_spec=spec, drop_eagle_block=False, alignment_tokens=self._unit,
            )  # fmt: skip
            return pool.asked[-(self._unit // spec.block_size) :] if self._is_dense[group] else pool.asked

        return needs

    def _spans(self, request: Any, external: int, asked: _Asked, lost: tuple[int, int]) -> list[Span]:
        computed, total, size, unit = asked.computed, request.num_tokens, self._size, self._unit
        hashes, reused, full = request.block_hashes, computed + external, total // unit
        spans: list[Span] = [("held", "gpu", 0, computed, NONE), ("loaded", "store", computed, reused, NONE)]
        running = [
            {bytes(each) for each in other.block_hashes[other.num_computed_tokens // size : other.num_tokens // size]}
            for other in self._scheduler.requests.values()
            if other is not request and not other.is_finished()
            if other.status.name == "RUNNING" or other.num_computed_tokens
        ]
        dense = [group for group, is_dense in enumerate(self._is_dense) if is_dense]
        needs, most = self._needs(hashes), (total - 1) // unit  # where a hit can end
        in_vllm, hit = _look(asked.vllm, dense, needs, range(most))
        in_vllm += _look(asked.vllm, dense, needs, range(most, full))[0]
        if self._has_states and not external and hit * unit < computed:
            computed = reused = hit * unit  # vLLM goes back to what all groups have
            spans[:] = [("held", "gpu", 0, computed, NONE)]
        if self._groups > 1 and hit * unit != computed and not self._has_states:
            raise ValueError(f"vLLM found {computed} tokens, and the reference {hit * unit}")
        per = self._view.chunk_size
        first = 0 if self._view.from_start else computed // per
        stored_whole = [group for group in range(len(asked.store)) if self._view.is_dense(group)]
        in_store = partial(_look, asked.store, stored_whole, self._view.needs(hashes, size, first))
        end_chunk = max(first, total // per)
        chunks, reach = in_store(range(first, end_chunk))
        is_cut = self._view.ends_early and total % per == 0 and reach == end_chunk - first > 0
        if self._view.ends_early:
            most_chunks = max(first, (total - 1) // per)
            chunks, reach = in_store(range(first, most_chunks))
            chunks += in_store(range(most_chunks, end_chunk))[0]
            reach += reach == most_chunks - first and end_chunk > most_chunks and chunks[-1].state == "held"
        for number in range(reused // unit, full):
            start, end, key, chunk = (
                max(reused, number * unit),
                (number + 1) * unit,
                bytes(hashes[-(-(number + 1) * unit // size) - 1]),
                number * unit // per,
            )
            here, stored = in_vllm[number], chunks[chunk - first] if chunk - first < len(chunks) else _Found("never")
            is_stored = stored.state == "held"
            names = [bytes(hashes[(chunk + 1) * per // size - 1])] if chunk - first < len(chunks) else []
            is_storing = bool(stored.lacking or names) and set(stored.lacking or names) <= asked.storing
            losses = [
                (found.moment, found.how, tier, found.groups)
                for found, tier in ((here, "gpu"), (stored, "store"))
                if found.state == "lost" or (found.state == "uncached" and tier == "gpu")
            ]
            if not losses and stored.state == "uncached":
                losses = [(stored.moment, stored.how, "store", stored.groups)]
            groups = NONE
            if end == total and reused >= total - unit and (here.state == "held" or is_stored):
                cause, tier = "last-token", "gpu" if here.state == "held" and reused != total - 1 else "store"
            elif is_cut and chunk == end_chunk - 1 and reused >= total - per:
                cause, tier = "last-token", "store"
            elif here.state == "held":
                cause, tier = "refused" if start == computed else "stranded", "gpu"
            elif is_stored and chunk >= first + reach:
                cause, tier = "stranded", "store"
            elif any(key in chain for chain in running):
                cause, tier = "pending", "gpu"
            elif is_storing:
                cause, tier = "pending", "store"
            elif is_stored:
                cause, tier = "refused", "store"
            elif lost[0] <= start < lost[1]:
                cause, tier = "failed-load", "store"
            elif losses:
                _, cause, tier, groups = max(losses, key=lambda each: each[0])
            else:
                cause, tier = "new", ""
            several = self._groups > 1 and cause in ("evicted", "uncached")
            spans.append((cause, tier, start, end, groups if several else NONE))
        spans.append(("unaligned", "", max(reused, full * unit), total, NONE))
        return [span for span in spans if span[3] > span[2]]


Tally = Counter[tuple[str, str]]
"""Tokens by the reference's cause, with its tier, and what was said of them: `right`, `unknown`, or the wrong cause."""


def compare(admissions: Sequence[Admission], splits: Sequence[Breakdown]) -> Tally:
    """How many tokens have their right cause and tier. Where events were lost, some admissions are no longer reported."""
    said_of = {split.event.sequence: split for split in splits}
    tally: Tally = Counter()
    for admission in admissions:
        split = said_of.get(admission.number)
        if admission.is_over or split is None:
            continue
        assert sum(part.tokens for part in split.parts) == admission.total
        for part in split.parts:
            said = (part.cause.value, "store" if part.tier not in ("", "gpu") else part.tier)
            for cause, tier, start, end, groups in admission.spans:
                if (tokens := min(end, part.end) - max(start, part.start)) > 0:
                    if said[0] == "loaded" and not split.is_final:
                        said = ("unknown", "")  # it is only promised
                    is_right = said == (cause, tier) or (cause == said[0] == "failed-load")
                    is_right = is_right and (part.detail.group in groups if groups else part.detail.group is None)
                    verdict = "right" if is_right else "unknown" if said[0] == "unknown" else " ".join(said).strip()
                    tally[f"{cause} {tier}".strip(), verdict] += tokens
    return tally


CHUNKS = (32, 64, 128)
"""Chunk sizes, in turn."""
CPU_BYTES = (400_000, 2_000_000, 50_000_000)
"""Stores that hold a few prompts, some, and all."""
CONNECTORS = ("OffloadConnector", "OffloadingConnector")


def is_in_whole_blocks(scenario: Scenario) -> bool:
    """Whether no hit ends within a block: of others this reference knows nothing."""
    return "prefix_match_unit" not in scenario.settings


TOGGLE_STEPS = 40
"""In runs with a changing level, it changes after this number of steps."""


def run(
    scenario: Scenario, name: str, *, seed: int, toggled: bool = False, folder: Path | None = None
) -> tuple[list[Admission], list[Event]]:
    """Play a scenario with a connector; the reference's admissions, and the events that were recorded. The seed chooses the
    chunk size and the size of the store. `toggled`: the level is `basic` and `detailed` by turns. `folder`: the model's,
    by default one of its own."""
    chunk, room = CHUNKS[seed % len(CHUNKS)], CPU_BYTES[seed // len(CHUNKS) % len(CPU_BYTES)]
    chunk = max(chunk, *(group.block_size or 0 for group in scenario.groups), 0)
    extra: dict[str, Any] = {"cpu_bytes_to_use": room, "kvtrail": {"level": "detailed", "fingerprints": "off"}}
    if name == "OffloadConnector":
        extra["chunk_size"] = chunk
    else:
        extra["block_size"] = chunk
    connector = {
        "kv_connector": name if name == "OffloadConnector" else f"Traced{name}", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute" if name == "OffloadConnector" else "fail",
        "kv_connector_module_path": "kvtrail.connector", "engine_id": f"causes-{secrets.token_hex(4)}",
        "kv_connector_extra_config": extra,
    }  # fmt: skip
    with nullcontext(folder) if folder else tempfile.TemporaryDirectory() as home, in_memory.exporters() as exporters:
        settings: dict[str, Any] = {"num_blocks": scenario.num_blocks, "block_size": scenario.block_size}
        stage = BareScheduler(
            Path(home),
            connector,
            drafts=scenario.drafts,
            workers=scenario.workers,
            seed=scenario.seed,
            groups=scenario.groups,
            **settings,
            **scenario.settings,
        )
        managers = stage.scheduler.kv_cache_manager.coordinator.single_type_managers
        view = _view(name, stage.connectors[0], chunk, managers)
        reference = Reference(stage.scheduler, stage.config.cache_config.block_size, view)
        stage.observers.append(lambda output, report: reference.stepped())
        with suppress(
            AssertionError
        ):  # vLLM's OffloadingConnector may end an engine; what was recorded until then is judged
            drive(scenario, stage, partial(_toggle, stage.connectors[0]) if toggled else lambda steps: None)
        in_memory.flush()
        stage.close()
        in_memory.flush()
    events = [event for each in exporters for event in each.events()]
    number_them(reference.admissions, events)
    return reference.admissions, events


def _toggle(connector: Any, steps: int) -> None:
    """Change the level of recording, as an operator may while the engine runs."""
    if steps % TOGGLE_STEPS == 0:
        level = Level.DETAILED if steps // TOGGLE_STEPS % 2 else Level.BASIC
        connector._kvtrail.recorder.level.set(level, None)


def number_them(admissions: Sequence[Admission], events: Iterable[Event]) -> None:
    """Give the admissions the numbers of their allocations: the first after each lookup that did not put it off."""
    awaited: set[str] = set()
    numbers: list[int] = []
    for event in events:
        if isinstance(event, Lookup) and event.error is None and event.returned is not None:
            awaited.add(event.request or "")
        elif isinstance(event, Alloc) and event.request in awaited and event.error is None:
            awaited.discard(event.request)
            numbers.append(event.sequence)
    assert len(admissions) - 1 <= len(numbers) <= len(admissions)
    for admission, number in zip(admissions, numbers, strict=False):
        admission.number = number


def _view(name: str, connector: Any, chunk: int, managers: Sequence[Any]) -> StoreView:
    if name == "OffloadConnector":
        return OffloadView(connector, chunk, managers)
    return OffloadingView(connector, chunk, from_start=False)


REUSED = ("held gpu", "loaded store")


def missed(tally: Tally) -> tuple[Counter[str], Counter[tuple[str, str]]]:
    """Of the tokens that were computed, how many are `right`, `unknown` and `wrong`; and of the wrong ones, which were taken
    for what."""
    shares: Counter[str] = Counter()
    wrong: Counter[tuple[str, str]] = Counter()
    for (cause, said), tokens in tally.items():
        if cause not in REUSED:
            shares[said if said in ("right", "unknown") else "wrong"] += tokens
            if said not in ("right", "unknown"):
                wrong[cause, said] += tokens
    return shares, wrong
