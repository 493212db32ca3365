"""What the offload did with tokens, lookups, bytes and time, summed up as events come, and what the sums mean.

Pure, and bounded: of a request, only what its next event needs is held, and the sums go into cells of a minute, an engine, a
connector, an epoch and a measure. The counter expects the events of a request in order, each once; the detector sees to that.
What a missing event leaves undecided is not counted.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from kvtrail.tracer.causes.followed import Breakdown
from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import (
    Alloc,
    Event,
    Load,
    LoadPlan,
    Lookup,
    Plan,
    Preempt,
    Received,
    RequestEnd,
    RequestStart,
    Schedule,
    Stats,
    Store,
    TransferEnd,
)
from kvtrail.tracer.events.handlers import handlers
from kvtrail.tracer.ledger.account import SCHEDULER, Account
from kvtrail.tracer.savings.cause_sums import Tenants, ages_of, causes_of, measures_of

MINUTE_S = 60
MINUTE_NS = MINUTE_S * 10**9
HOUR_S = 3600
BY_MINUTE_UP_TO_NS = 6 * HOUR_S * 10**9
MOST_OPEN = 100_000
"""Requests, and transfers, that are followed at a time; beyond that the longest untouched is dropped and not counted."""
LAST_EPOCH = 3
"""Later epochs are counted with this one."""
MOST_TIERS = 8
"""Tiers distinguished for each connector; the rest are `other`."""
TIER = "tier:"
"""Prefix of a tier's name in a measure."""
UNNAMED, OTHER = "store", "other"
"""The tier of tokens whose source the connector does not name, and of those beyond `MOST_TIERS`."""
PREFILL_SHARE = 0.9
"""A step measures the prefill rate if this share of its tokens is prefill: otherwise decodes would add to its time."""


class Cell(NamedTuple):
    """What a number is added to: the minute as Unix seconds, and whose it is."""

    at_s: int
    engine: str
    connector: str
    epoch: int
    measure: str


class Cells(Mapping[Cell, int]):
    """Sums by cell. The cells of a minute, an engine, a connector and an epoch lie together, since an event adds to several
    of them."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, str, str, int], dict[str, int]] = {}

    def add(
        self, event: Event, measures: Mapping[str, int], *, epoch: int | None = None, stretch_s: int = MINUTE_S
    ) -> None:
        """Add to the cells of an event's minute, the first one of a longer stretch, and, if no other is given, its epoch."""
        if epoch is None:
            epoch = event.epoch if event.epoch < LAST_EPOCH else LAST_EPOCH
        where = (event.end_ns // (stretch_s * 10**9) * stretch_s, event.engine, event.connector, epoch)
        held = self._held.get(where)
        if held is None:
            held = self._held[where] = {}
        for measure, value in measures.items():
            if value:
                held[measure] = held.get(measure, 0) + value

    def clear(self) -> None:
        """Begin anew."""
        self._held.clear()

    def __getitem__(self, cell: Cell) -> int:
        return self._held[cell[:4]][cell.measure]

    def __iter__(self) -> Iterator[Cell]:
        return (Cell(*where, measure) for where, held in self._held.items() for measure in held)

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))


@dataclass(frozen=True, slots=True)
class Admission:
    """A lookup whose answer led to an allocation.

    Attributes:
        lookup: the last one before it.
        event: the first allocation after it; a second one follows an asynchronous load and admits nothing new.
        is_alone: whether no other connector, which might load tokens too, was asked in this epoch.
    """

    lookup: Lookup
    event: Alloc
    is_alone: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """The end of an asynchronous load, and how long its request has waited since the allocation, in nanoseconds."""

    event: Received
    lasted_ns: int


Fact = Admission | Breakdown | Wait | Preempt


@dataclass(slots=True)
class _Asked:
    """A lookup of a request's epoch, and the allocation that used its answer, until the request runs."""

    lookup: Lookup
    postponed_ns: int | None = None
    """When the connector first said 'ask me later'."""
    alloc: Alloc | None = None


@dataclass(frozen=True, slots=True)
class MeasuredPrefill:
    """A step that was nearly all prefill: its prefill tokens, and its duration in nanoseconds."""

    tokens: int
    took_ns: int


@dataclass(slots=True)
class _EngineStep:
    at_ns: int
    tokens: int = 0
    prefill: int = 0
    ends: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each of its requests: the epoch, and the token up to which the step computes it."""


@dataclass(slots=True)
class PrefillTimer:
    """Measures how fast engines prefill, from their own steps.

    A step lasts until the next step in which one of its requests goes on exactly where it stopped: then the engine did not
    idle in between, and no step between them was lost. This needs level `detailed`, which records the step after a prefill;
    at level `basic` nothing is measured and nothing is guessed.
    """

    _now: dict[tuple[str, str], tuple[_EngineStep | None, _EngineStep]] = field(default_factory=dict)
    """By recorder and connector: the step before the current one, and the current one."""

    def enter(self, event: Schedule, total: int) -> MeasuredPrefill | None:
        """Enter one request's part of a step; returns the step before it, once its duration is known. `total` are the
        request's tokens when it was admitted."""
        key = (event.recorder, event.connector_id)
        before, now = self._now.get(key, (None, _EngineStep(event.start_ns)))
        if event.start_ns > now.at_ns:
            before, now = now, _EngineStep(event.start_ns)
        elif event.start_ns < now.at_ns:
            return None  # of a step that is over
        measured = None
        request, end = event.request or "", event.computed + event.scheduled
        if before is not None and before.ends.get(request) == (event.epoch, event.computed):
            if before.prefill and before.prefill >= PREFILL_SHARE * before.tokens:
                measured = MeasuredPrefill(before.prefill, now.at_ns - before.at_ns)
            before = None
        now.tokens = event.scheduler_tokens or now.tokens + event.scheduled
        now.prefill += max(0, min(end, total) - event.computed)
        now.ends[request] = (event.epoch, end)
        self._now[key] = (before, now)
        return measured

    def forget(self, recorder: str) -> None:
        """Drop the steps of a recorder."""
        for key in [key for key in self._now if key[0] == recorder]:
            del self._now[key]


@dataclass(slots=True)
class SavingsCounter:
    """Sums what the offload did.

    Attributes:
        cells: the sums since the caller last cleared them.
        facts: admissions, their causes, waits and preemptions since the caller last cleared them, one by one.
    """

    cells: Cells = field(default_factory=Cells)
    facts: list[Fact] = field(default_factory=list)
    _speakers: dict[str, str] = field(default_factory=dict)
    """By recorder, the connector that answers for all others. What its children report of a request is not counted again."""
    _preempted: OrderedDict[tuple[str, str], int] = field(default_factory=OrderedDict)
    """By request, the last epoch whose preemption was counted: each child of a MultiConnector reports it."""
    _open: OrderedDict[tuple[str, str], dict[str, _Asked]] = field(default_factory=OrderedDict)
    _begun: OrderedDict[tuple[str, str], tuple[int, int]] = field(default_factory=OrderedDict)
    """By request that has just begun to run for the first time: its tokens from vLLM's own cache, and those that the
    connector was to load. What the engine's statistics say of it comes next."""
    _tenants: Tenants = field(default_factory=Tenants)
    _tiers: dict[str, set[str]] = field(default_factory=dict)
    _prefill_timer: PrefillTimer = field(default_factory=PrefillTimer)

    def enter(self, event: Event, account: Account) -> None:
        """Enter one event, after it was entered into its request's account."""
        if (enter := _ENTER.get(event.kind)) and not (self._speakers and self._is_spoken_for(event)):
            enter(self, event, account)

    def explain(self, breakdown: Breakdown) -> None:
        """Enter the parts of a prompt."""
        event = breakdown.event
        self.facts.append(breakdown)
        tier_of = partial(self._tier, event.connector)
        self.cells.add(event, measures_of(breakdown, tier_of, tenant=self._tenants.of(event)))

    def forget(self, recorders: Iterable[str]) -> None:
        """Drop what is held of recorders that have ended."""
        for recorder in recorders:
            self._speakers.pop(recorder, None)
            self._prefill_timer.forget(recorder)

    def recall(self, event: Event, account: Account) -> None:
        """Enter one event whose sums were counted before: later events may need it."""
        cells, facts = self.cells, self.facts
        self.cells, self.facts = Cells(), []
        try:
            self.enter(event, account)
        finally:
            self.cells, self.facts = cells, facts

    def _is_spoken_for(self, event: Event) -> bool:
        """Whether the event repeats what a connector reports that answers for this one. Copies are reported once."""
        speaker = self._speakers.get(event.recorder)
        return speaker not in (None, event.connector_id) and not isinstance(event, Load | Store | RequestEnd)

    def _asked(self, event: Event) -> dict[str, _Asked]:
        """The lookups of the event's request in its epoch, by connector."""
        key = (event.engine, event.request or "")
        held = self._open.get(key)
        if held is None:
            held = self._open[key] = {}
            if len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
            return held
        self._open.move_to_end(key)
        for connector_id, asked in list(held.items()):
            if asked.lookup.epoch != event.epoch:
                del held[connector_id]
        return held

    def _enter_request_start(self, event: RequestStart, _: Account) -> None:
        self._tenants.enter(event)

    def _enter_lookup(self, event: Lookup, account: Account) -> None:
        held = self._asked(event)
        if event.recorder not in self._speakers and event.has(Capability.ANSWERS_FOR_CHILDREN):
            self._speakers[event.recorder] = event.connector_id
            held.clear()  # its children were asked before it answered
        before = held.get(event.connector_id)
        postponed_ns = None
        if before is not None and before.alloc is None:
            postponed_ns = before.postponed_ns
            if account.complete:
                self._unused(before.lookup)
        self.cells.add(event, {"lookups": 1, "lookup_ns": max(0, event.end_ns - event.start_ns)})
        if event.error is not None:
            held.pop(event.connector_id, None)
            return
        if event.returned is None:
            self.cells.add(event, {"lookups_postponed": 1})
            postponed_ns = postponed_ns or event.end_ns
        elif postponed_ns is not None:
            self.cells.add(event, {"postponed_ns": max(0, event.end_ns - postponed_ns)})
            postponed_ns = None
        held[event.connector_id] = _Asked(event, postponed_ns)

    def _unused(self, lookup: Lookup) -> None:
        if lookup.returned is not None and lookup.returned > 0:
            self.cells.add(lookup, {"lookups_unused": 1, "unused": lookup.returned})

    def _enter_alloc(self, event: Alloc, account: Account) -> None:
        held = self._asked(event)
        asked = held.get(event.connector_id)
        if asked is None or asked.alloc is not None or event.error is not None:
            return  # the second allocation after an asynchronous load answers no lookup
        asked.alloc = event
        lookup = asked.lookup
        self.facts.append(Admission(lookup, event, is_alone=len(held) == 1))
        local = min(lookup.computed, lookup.total)
        self.cells.add(event, {"admissions": 1, "asked": lookup.total, "local": local, "taken": event.allocated})
        if not event.allocated and account.complete:
            self._unused(lookup)
        left = event.allocated
        for source in event.hit_sources or ():
            tier, _, tokens = source.rpartition(":")
            if tokens.isdecimal() and (count := min(left, int(tokens))):
                self.cells.add(event, {TIER + self._tier(event.connector, tier): count})
                left -= count
        self.cells.add(event, {TIER + UNNAMED: left})

    def _tier(self, connector: str, name: str) -> str:
        known = self._tiers.setdefault(connector, set())
        if name not in known and len(known) >= MOST_TIERS:
            return OTHER
        known.add(name)
        return name

    def _enter_received(self, event: Received, _: Account) -> None:
        asked = self._asked(event).get(event.connector_id)
        if asked is not None and asked.alloc is not None and asked.alloc.allocated and asked.lookup.is_async:
            waited_ns = max(0, event.end_ns - asked.alloc.end_ns)
            self.facts.append(Wait(event, waited_ns))
            self.cells.add(event, {"waits": 1, "waited_ns": waited_ns})
            if event.failed:
                self.cells.add(event, {"failed": asked.alloc.allocated})

    def _enter_schedule(self, event: Schedule, account: Account) -> None:
        if (measured := self._prefill_timer.enter(event, account.total or 0)) is not None:
            self.cells.add(event, {"prefill": measured.tokens, "prefill_ns": measured.took_ns}, epoch=0)
        key = (event.engine, event.request or "")
        held = self._open.pop(key, {})
        if not event.epoch and (admitted := [asked for asked in held.values() if asked.alloc is not None]):
            local = min(min(asked.lookup.computed, asked.lookup.total) for asked in admitted)
            self._begun[key] = (local, sum(asked.alloc.allocated for asked in admitted if asked.alloc is not None))
            if len(self._begun) > MOST_OPEN:
                self._begun.popitem(last=False)
        for asked in held.values():
            if asked.alloc is None or asked.lookup.epoch != event.epoch:
                continue
            lookup = asked.lookup
            measures = {"spared": min(asked.alloc.allocated, max(0, event.computed - lookup.computed))}
            if lookup.matched is None:
                measures["admissions_hidden"] = 1
            else:  # the last token is always computed, for its logits
                measures["recomputed"] = max(0, min(lookup.matched, lookup.total - 1) - event.computed)
            self.cells.add(asked.alloc, measures)

    def _enter_stats(self, event: Stats, _: Account) -> None:
        begun = self._begun.pop((event.engine, event.request or ""), None)
        if begun is None or event.reported is None or event.from_connector is None:
            return
        local, external = begun
        measures = {
            "counted": 1,
            "counted_local": max(0, event.reported - event.from_connector),
            "counted_external": max(0, event.from_connector),
            "compared_local": local,
            "compared_external": external,
        }
        self.cells.add(event, measures)

    def _enter_preempt(self, event: Preempt, _: Account) -> None:
        key = (event.engine, event.request or "")
        if self._preempted.get(key) == event.epoch:
            return
        self._preempted[key] = event.epoch
        if len(self._preempted) > MOST_OPEN:
            self._preempted.popitem(last=False)
        self.facts.append(event)
        self.cells.add(event, {"preemptions": 1})

    def _enter_request(self, event: RequestEnd, account: Account) -> None:
        self._preempted.pop((event.engine, event.request or ""), None)
        self._begun.pop((event.engine, event.request or ""), None)
        for asked in self._open.pop((event.engine, event.request or ""), {}).values():
            if asked.alloc is None and account.complete:
                self._unused(asked.lookup)

    def _enter_load(self, event: Load, _: Account) -> None:
        self._copied(event, "load")

    def _enter_store(self, event: Store, _: Account) -> None:
        self._copied(event, "store")

    def _copied(self, event: Load | Store, way: str) -> None:
        if event.rank == 0:  # every rank copies its share of the same tokens
            self.cells.add(event, {f"{way}_tokens": event.count})
        if event.role == SCHEDULER:
            return  # from a log, whose lines have no duration
        took_ns = max(0, event.end_ns - event.start_ns)
        self.cells.add(event, {f"{way}_ns": took_ns})
        if event.bytes is not None:
            self.cells.add(event, {f"{way}_bytes": event.bytes, f"{way}_bytes_ns": took_ns})


_ENTER = handlers(SavingsCounter)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedTransfer:
    """How long a numbered load or store lasted, from its plan to its end, in nanoseconds."""

    is_load: bool
    lasted_ns: int


class TransferTimer:
    """Times numbered transfers. It takes events in the order of their arrival; transfers whose events come out of order, or
    are lost, are not counted. Transfers may outlast their request."""

    def __init__(self) -> None:
        self._plans: OrderedDict[tuple[str, str | None, int], Plan] = OrderedDict()

    def begin(self, plan: Plan) -> None:
        """Note a transfer, if it has a number."""
        if plan.transfer_id is not None:
            self._plans[plan.engine, plan.request, plan.transfer_id] = plan
            if len(self._plans) > MOST_OPEN:
                self._plans.popitem(last=False)

    def end(self, event: TransferEnd) -> TimedTransfer | None:
        """The transfer that has ended; None if its plan is not known."""
        plan = self._plans.pop((event.engine, event.request, event.transfer_id), None)
        if plan is None:
            return None
        return TimedTransfer(is_load=isinstance(plan, LoadPlan), lasted_ns=max(0, event.end_ns - plan.start_ns))


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsRow:
    """The sums of one interval, engine, connector and epoch.

    Attributes:
        at_s: where the interval begins, Unix seconds.
        engine, connector, epoch: whose they are; the last epoch includes all later ones.
        measures: sums by name; a measure that is absent is 0.
    """

    at_s: int
    engine: str
    connector: str
    epoch: int
    measures: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """What the offload did, over some rows. Counts are tokens unless their name says otherwise; None means unknown.

    Attributes:
        admissions: how often a request was given blocks, counted again after a preemption.
        asked: tokens of the requests at these moments.
        local: of those, tokens in vLLM's own prefix cache.
        taken: of those, tokens that the connector was to load.
        tiers: `taken` by tier; `store` where the connector names no tier.
        causes: tokens of admissions by why they were reused or computed, and by tier: `evicted:host`, `new:`.
        causes_age_s: how many seconds before, on average, what had been lost was lost, by cause.
        hit_share, local_share: `taken` and `local` as shares of `asked`.
        spared: tokens that were taken and not computed.
        recomputed: tokens that the connector's store held and that were computed all the same.
        hidden: admissions whose connector hides what its store held, so that `recomputed` does not cover them.
        failed: tokens whose load failed.
        lookups, lookups_unused, lookups_postponed: calls; those whose answer was not used; those answered 'ask me later'.
        unused: tokens that the unused lookups had promised.
        lookup_s: time that lookups took on the scheduler's thread.
        waits: asynchronous loads that requests waited for.
        waited_s: how long they waited, in all; `postponed_s`: how long 'ask me later' held requests up.
        load_tokens, store_tokens: tokens copied, each once however many ranks copy a share of it.
        load_bytes, store_bytes: bytes copied, where workers report them.
        load_s, store_s: duration of the workers' copies, summed over ranks.
        load_bytes_per_s, store_bytes_per_s: the rate of one rank while it copies.
        preemptions: how often requests were preempted.
        counted: requests of which the engine's own statistics say where their cached tokens came from;
            `counted_local` and `counted_external` are these tokens, from its own cache and from the connector, and
            `compared_local` and `compared_external` what the lookups and allocations of the same requests say.
        prefill_tokens_per_s: measured from the engines' own steps, over all engines.
        prefill_saved_s: `spared` at the prefill rate of the engine that spared it.
        spared_unrated: `spared` of engines whose prefill rate is unknown; not part of `prefill_saved_s`.
    """

    admissions: int
    asked: int
    local: int
    taken: int
    tiers: Mapping[str, int]
    causes: Mapping[str, int]
    causes_age_s: Mapping[str, float]
    hit_share: float | None
    local_share: float | None
    spared: int
    recomputed: int
    hidden: int
    failed: int
    lookups: int
    lookups_unused: int
    lookups_postponed: int
    unused: int
    lookup_s: float
    waits: int
    waited_s: float
    postponed_s: float
    load_tokens: int
    store_tokens: int
    load_bytes: int
    store_bytes: int
    load_s: float
    store_s: float
    load_bytes_per_s: float | None
    store_bytes_per_s: float | None
    preemptions: int
    counted: int
    counted_local: int
    counted_external: int
    compared_local: int
    compared_external: int
    prefill_tokens_per_s: float | None
    prefill_saved_s: float | None
    spared_unrated: int


def savings_of(rows: Iterable[SavingsRow], *, rates: Mapping[str, float] | None = None) -> Savings:
    """Sum up rows; `rates` are the engines' prefill rates in tokens per second, if other rows than these show them."""
    rows = list(rows)
    rates = prefill_rates(rows) if rates is None else rates
    n: Counter[str] = Counter()
    spared: Counter[str] = Counter()
    for row in rows:
        n.update(row.measures)
        spared[row.engine] += row.measures.get("spared", 0)
    rated = {engine for engine, tokens in spared.items() if tokens and engine in rates}
    return Savings(
        admissions=n["admissions"],
        asked=n["asked"],
        local=n["local"],
        taken=n["taken"],
        tiers={name.removeprefix(TIER): tokens for name, tokens in sorted(n.items()) if name.startswith(TIER)},
        causes=causes_of(n),
        causes_age_s=ages_of(n),
        hit_share=_share(n["taken"], n["asked"]),
        local_share=_share(n["local"], n["asked"]),
        spared=n["spared"],
        recomputed=n["recomputed"],
        hidden=n["admissions_hidden"],
        failed=n["failed"],
        lookups=n["lookups"],
        lookups_unused=n["lookups_unused"],
        lookups_postponed=n["lookups_postponed"],
        unused=n["unused"],
        lookup_s=n["lookup_ns"] / 1e9,
        waits=n["waits"],
        waited_s=n["waited_ns"] / 1e9,
        postponed_s=n["postponed_ns"] / 1e9,
        load_tokens=n["load_tokens"],
        store_tokens=n["store_tokens"],
        load_bytes=n["load_bytes"],
        store_bytes=n["store_bytes"],
        load_s=n["load_ns"] / 1e9,
        store_s=n["store_ns"] / 1e9,
        load_bytes_per_s=_share(n["load_bytes"], n["load_bytes_ns"] / 1e9),
        store_bytes_per_s=_share(n["store_bytes"], n["store_bytes_ns"] / 1e9),
        preemptions=n["preemptions"],
        counted=n["counted"],
        counted_local=n["counted_local"],
        counted_external=n["counted_external"],
        compared_local=n["compared_local"],
        compared_external=n["compared_external"],
        prefill_tokens_per_s=_share(n["prefill"], n["prefill_ns"] / 1e9),
        prefill_saved_s=sum(spared[engine] / rates[engine] for engine in rated) if rated else None,
        spared_unrated=sum(tokens for engine, tokens in spared.items() if engine not in rated),
    )


def prefill_rates(rows: Iterable[SavingsRow]) -> dict[str, float]:
    """Prefill tokens per second of each engine, measured from its own steps; engines without a measurement are left out."""
    tokens: Counter[str] = Counter()
    took_ns: Counter[str] = Counter()
    for row in rows:
        tokens[row.engine] += row.measures.get("prefill", 0)
        took_ns[row.engine] += row.measures.get("prefill_ns", 0)
    return {engine: tokens[engine] / took_ns[engine] * 1e9 for engine in tokens if tokens[engine] and took_ns[engine]}


def by_step(cells: Iterable[tuple[Cell, int]]) -> Counter[tuple[int | str, ...]]:
    """The sums of minutes, and of their hours: a range of a week reads hours. A key is the step's seconds, and a cell."""
    sums: Counter[tuple[int | str, ...]] = Counter()
    for cell, value in cells:
        for step_s in (MINUTE_S, HOUR_S):
            sums[step_s, cell.at_s // step_s * step_s, *cell[1:]] += value
    return sums


def interval_s(since_ns: int, until_ns: int) -> int:
    """Seconds of the intervals into which a range of time is split: hours if it is longer than six, else minutes."""
    return MINUTE_S if until_ns - since_ns <= BY_MINUTE_UP_TO_NS else HOUR_S


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
