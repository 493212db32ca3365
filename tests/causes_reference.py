"""The causes of a run on the bare scheduler, from what vLLM's pool and the connector's store hold at each moment: what the
recording does not tell is seen here. Nothing of it is shared with `kvtrail.tracer.causes`."""

from __future__ import annotations

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
from kvtrail.connector.simulate.run import drive
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.connector.simulate.stages import BareScheduler
from kvtrail.tracer.events.events import Alloc, Event, Lookup
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.facts import Breakdown

Span = tuple[str, str, int, int]
"""A cause, its tier (`gpu` or `store`), and tokens from the first to before the last."""


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
    """A cache as it is, and when it lost what.

    Attributes:
        held: what it holds, in all of its groups.
        some: what at least one group holds.
        lost: of what it lost, when, and whether by a reset.
        ever: all that it ever held.
    """

    held: set[bytes] = field(default_factory=set)
    some: set[bytes] = field(default_factory=set)
    lost: dict[bytes, tuple[int, str]] = field(default_factory=dict)
    ever: set[bytes] = field(default_factory=set)

    def see(self, groups: Sequence[set[bytes]], moment: int, how: str) -> None:
        """A block is lost when the first group has lost it, and none holds it whole any more."""
        held, some = set.intersection(*groups), set.union(*groups)
        incomplete = {key for key in self.some - held if key in self.held or (key not in some and key not in self.lost)}
        self.lost.update(dict.fromkeys(incomplete, (moment, how)))
        self.held, self.some, self.ever = held, some, self.ever | some

    def copy(self) -> _Cache:
        return _Cache(self.held, self.some, dict(self.lost), self.ever)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A lookup: the tokens that vLLM held, and what all caches held."""

    computed: int
    vllm: _Cache
    store: _Cache
    storing: set[bytes]


class StoreView:
    """What a connector's store holds, by the hashes of its chunks' last blocks."""

    def __init__(self, connector: Any, chunk_size: int, *, from_start: bool) -> None:
        """`from_start`: its lookups look at all of a prompt's chunks, and not only behind what vLLM holds."""
        self.connector, self.chunk_size, self.from_start = connector, chunk_size, from_start

    def held(self) -> set[bytes]:
        """Chunks that can be loaded."""
        raise NotImplementedError

    def storing(self) -> set[bytes]:
        """Chunks whose store is under way."""
        return set()

    def asked(self, request: Any) -> None:
        """A lookup for this request comes."""


class OffloadView(StoreView):
    """kvtrail's OffloadConnector."""

    def held(self) -> set[bytes]:
        return set(self.connector.held_keys())


class OffloadingView(StoreView):
    """vLLM's OffloadingConnector."""

    def _chunks(self) -> Iterable[tuple[bytes, Any]]:
        policy = self.connector.connector_scheduler.manager._policy
        return list(policy.chunks.items())

    def held(self) -> set[bytes]:
        return {bytes(key)[:-4] for key, chunk in self._chunks() if chunk.is_ready}

    def storing(self) -> set[bytes]:
        return {bytes(key)[:-4] for key, chunk in self._chunks() if not chunk.is_ready}


class Reference:
    """Watches a run.

    Attributes:
        admissions: in their order.
    """

    def __init__(self, scheduler: Any, block_size: int, view: StoreView) -> None:
        self._scheduler, self._view = scheduler, view
        self._size = block_size
        self._groups = len(scheduler.kv_cache_config.kv_cache_groups)
        self._pool = scheduler.kv_cache_manager.block_pool
        self._map = self._pool.cached_block_hash_to_block
        self._vllm, self._store = _Cache(), _Cache()
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
        self._vllm.see(groups, self._moment, "evicted" if now is self._map else "reset")
        self._map = now
        self._store.see([self._view.held()], self._moment, "reset" if self._is_reset else "evicted")

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
        for cause, tier, start, end in admission.spans:
            if cause == "loaded" and end > computed:
                spans += [
                    ("loaded", tier, start, max(start, computed)),
                    ("failed-load", tier, max(start, computed), end),
                ]
            else:
                spans.append((cause, tier, start, end))
        admission.spans = [span for span in spans if span[3] > span[2]]
        admission.promised = (computed, computed)

    def _looked_up(self, answer: Any, request: Any, computed: int) -> None:
        self._view.asked(request)
        self._asked[request.request_id] = _Asked(computed, self._vllm.copy(), self._store.copy(), self._view.storing())

    def _allocated(self, answer: Any, request: Any, blocks: Any, external: int) -> None:
        asked = self._asked.pop(request.request_id, None)
        if asked is None:
            return  # the second allocation after an asynchronous load
        lost = (0, 0)
        for each in self.admissions[-64:]:
            if each.request is request and each.epoch == request.num_preemptions:
                lost = next(((s, e) for cause, _, s, e in each.spans if cause == "failed-load"), lost)
                each.is_over = True
        computed, total = asked.computed, request.num_tokens
        spans = self._spans(request, external, asked, lost)
        self.admissions.append(
            Admission(request, request.num_preemptions, spans, (computed, computed + external), total)
        )

    def _spans(self, request: Any, external: int, asked: _Asked, lost: tuple[int, int]) -> list[Span]:
        computed, in_vllm, in_store, storing = asked.computed, asked.vllm.held, asked.store.held, asked.storing
        total, size, hashes = request.num_tokens, self._size, [bytes(each) for each in request.block_hashes]
        reused, full = computed + external, total // size
        spans: list[Span] = [("held", "gpu", 0, computed), ("loaded", "store", computed, reused)]
        running = [
            {bytes(each) for each in other.block_hashes[: other.num_tokens // size]}
            for other in self._scheduler.requests.values()
            if other is not request and not other.is_finished()
            if other.status.name == "RUNNING" or other.num_computed_tokens
        ]
        per = self._view.chunk_size // size
        chunks = [hashes[n] in in_store for n in range(per - 1, full, per)]
        first = 0 if self._view.from_start else computed // self._view.chunk_size
        reach = next((n for n in range(first, len(chunks)) if not chunks[n]), len(chunks)) * self._view.chunk_size
        for block in range(reused // size, full):
            start, end, key, chunk = max(reused, block * size), (block + 1) * size, hashes[block], block // per
            is_stored = chunk < len(chunks) and chunks[chunk]
            is_storing = chunk < len(chunks) and hashes[(chunk + 1) * per - 1] in storing
            losses = [(*asked.vllm.lost[key], "gpu")] if key in asked.vllm.lost else []
            if chunk < len(chunks) and (chunk_key := hashes[(chunk + 1) * per - 1]) in asked.store.lost:
                losses.append((*asked.store.lost[chunk_key], "store"))
            if end == total and reused >= total - size and (key in in_vllm or is_stored):
                cause, tier = "last-token", "gpu" if key in in_vllm and reused != total - 1 else "store"
            elif key in in_vllm:
                cause, tier = "refused" if start == computed else "stranded", "gpu"
            elif is_stored and (chunk + 1) * self._view.chunk_size > reach:
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
                _, cause, tier = max(losses)
            else:
                assert key not in asked.vllm.ever or key in asked.vllm.some, "what was held is held, or was lost"
                cause, tier = ("new", "") if key not in asked.vllm.ever else ("incomplete", "gpu")
            spans.append((cause, tier, start, end))
        spans.append(("unaligned", "", max(reused, full * size), total))
        return [span for span in spans if span[3] > span[2]]


Tally = Counter[tuple[str, str]]
"""Tokens by the reference's cause, with its tier, and what was said of them: `right`, `unknown`, or the wrong cause."""


def compare(admissions: Sequence[Admission], splits: Sequence[Breakdown]) -> Tally:
    """How many tokens have their right cause and tier. Where events were lost, some admissions are not told any more."""
    said_of = {split.event.sequence: split for split in splits}
    tally: Tally = Counter()
    for admission in admissions:
        split = said_of.get(admission.number)
        if admission.is_over or split is None:
            continue
        assert sum(part.tokens for part in split.parts) == admission.total
        for part in split.parts:
            said = (part.cause.value, "store" if part.tier not in ("", "gpu") else part.tier)
            for cause, tier, start, end in admission.spans:
                if (tokens := min(end, part.end) - max(start, part.start)) > 0:
                    if said[0] == "loaded" and not split.is_final:
                        said = ("unknown", "")  # it is only promised
                    is_right = said == (cause, tier) or (cause == said[0] == "failed-load")
                    verdict = "right" if is_right else "unknown" if said[0] == "unknown" else " ".join(said).strip()
                    tally[f"{cause} {tier}".strip(), verdict] += tokens
    return tally


CHUNKS = (32, 64, 128)
"""Chunk sizes, in turn."""
CPU_BYTES = (400_000, 2_000_000, 50_000_000)
"""Stores that hold a few prompts, some, and all."""
CONNECTORS = ("OffloadConnector", "OffloadingConnector")


TOGGLE_STEPS = 40
"""After so many steps each the level of a run changes whose level does."""


def run(
    scenario: Scenario, name: str, *, seed: int, toggled: bool = False, folder: Path | None = None
) -> tuple[list[Admission], list[Event]]:
    """Play a scenario with a connector; the reference's admissions, and the events that were recorded. The seed chooses the
    chunk size and the size of the store. `toggled`: the level is `basic` and `detailed` by turns. `folder`: the model's,
    by default one of its own."""
    chunk, room = CHUNKS[seed % len(CHUNKS)], CPU_BYTES[seed // len(CHUNKS) % len(CPU_BYTES)]
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
        view = _view(name, stage.connectors[0], chunk)
        reference = Reference(stage.scheduler, stage.config.cache_config.block_size, view)
        stage.observers.append(lambda output, report: reference.stepped())
        with suppress(
            AssertionError
        ):  # vLLM's OffloadingConnector may end an engine; what was told until then is judged
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
    """Tell the admissions the numbers of their allocations: the first after each lookup that did not put it off."""
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


def _view(name: str, connector: Any, chunk: int) -> StoreView:
    if name == "OffloadConnector":
        return OffloadView(connector, chunk, from_start=True)
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
