"""A worker's side: looks at blocks when the scheduler's orders say so, and judges what they hold.

On a CPU a look is judged at once. On a GPU its fingerprints are queued behind the engine's work and judged when they are
there, in order, by one of the next steps; only with healing does the engine wait for them, where something was loaded.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

from kvtrail.connector.fingerprints.orders import ADMITTED, COMPUTED, HELD, LOADED, NO_ORDERS, Look, Orders
from kvtrail.connector.fingerprints.truth import UNKNOWN, Place, Truth, Wrong

DRIFT, ROT, EARLY = "drift", "rot", "early"
MOST_REMEMBERED = 65_536
"""Wrong blocks that were told, and requests whose looks are counted."""
Block = tuple[int, int]
"""The number of a KV cache group, and a block's id."""


class WrongBlock(NamedTuple):
    """Its kind, its id, its first token in the request, its hash, what it holds, and the request that left it so, or ""."""

    kind: str
    block: int
    token: int
    hash: int
    wrong: Wrong
    of: str


@dataclass(slots=True)
class Told:
    """What a look at blocks of a request has to tell. `hashes`, `fingerprints` and `tokens` are for other engines."""

    request_id: str
    look: str
    group: int
    identity: str
    blocks: int = 0
    unknown: int = 0
    hashes: list[int] = field(default_factory=list)
    fingerprints: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    wrong: list[WrongBlock] = field(default_factory=list)
    healed: bool = False


class _Last(NamedTuple):
    """What a block held when it was last looked at: under which hash, whether that was right, and who had filled it."""

    hash: int
    fingerprint: int
    is_right: bool
    of: str


class _Seen(NamedTuple):
    """One block of a look, and its fingerprints: of all layers, and by layer."""

    number: int
    block: int
    hash: int
    folded: int
    layers: Sequence[int]


class _Again(NamedTuple):
    """Wrong blocks of a load, which the next step's look decides: what each of them was instead. If all of them were just
    early, a request that `may_be_clean` has met nothing wrong: no forward pass had read them."""

    look: Look
    wrong: list[tuple[_Seen, Wrong]]
    may_be_clean: bool


Judge = Callable[[Look, list[_Seen]], None]


class Checks:
    """The looks of one rank at its blocks."""

    def __init__(
        self,
        groups: Mapping[int, Any],
        block_sizes: Mapping[int, int],
        truth: Truth,
        *,
        heals: bool,
        shares: bool,
        tell: Callable[[Told], None],
    ) -> None:
        """
        Args:
            groups: `Fingerprints` by the number of the KV cache group.
            block_sizes: tokens of a block, likewise.
            heals: wrong blocks are filled with zeros and named to vLLM.
            shares: what is computed is told for other engines.
            tell: is called with what there is to tell.
        """
        self._groups = groups
        self._block_sizes = block_sizes
        self._truth = truth
        self._heals, self._shares, self._tell = heals, shares, tell
        self._queue: deque[tuple[Any, Callable[[Any], None]]] = deque()
        """Fingerprints that are being taken, and what judges them."""
        self._loads: list[Look] = []
        self._awaited: dict[str, list[Look]] = {}
        """Loads that end between steps, by request."""
        self._received: list[Look] = []
        self._taken: list[Look] = []
        """Loads of this step whose fingerprints have been taken."""
        self._reported: set[int] = set()
        """Blocks of this step's loads that the connector itself reports as not loaded."""
        self._again: list[_Again] = []
        self._to_heal: set[int] = set()
        self._tainted: set[str] = set()
        """Requests that have met something wrong."""
        self._last: dict[Block, _Last] = {}
        self._recomputed: dict[Block, str] = {}
        """Blocks that vLLM computes again, and for which request."""
        self._mixed: dict[str, dict[tuple[int, int], Wrong | bool | None]] = {}
        """Blocks that are loaded but for their last token, by request, and by group and number: whether they were right
        before, or what they were instead; None where nobody knows."""
        self._loads_whole = False
        """Whether this connector is known to load the last token of such a block, too, and before the forward pass."""
        self._waits_whole = False
        """Likewise, layer by layer in the forward pass."""
        self._layers: list[tuple[Any, list[Look]]] = []
        """Such blocks that are read layer by layer in this step's forward pass: `LayerByLayer`, and their looks."""
        self._before_load: dict[str, dict[Block, int]] = {}
        """What such blocks held before their load, by request."""
        self._named: OrderedDict[tuple[str, int, int], None] = OrderedDict()
        """Wrong blocks that were told of a request: its id, the block's, and its hash."""
        self._quiet: OrderedDict[tuple[str, str, int], Told] = OrderedDict()
        """Looks of which all was well, counted until there is something to tell."""

    def begin(self, orders: Orders | None) -> bool:
        """At the beginning of a step, before its loads and its forward pass. Returns whether the other calls of the step are
        of any interest."""
        if orders is not None or self._again or self._queue or self._loads or self._received or self._taken:
            self._begin(orders)
        return bool(self._loads or self._awaited or self._to_heal)

    def _begin(self, orders: Orders | None) -> None:
        self._settle()
        again, self._again = self._again, []
        self._loads, self._taken, self._reported = [], [], set()
        if orders is None:
            orders = NO_ORDERS
        if orders.forget:
            self._truth.forget()
        for request_id in orders.begun:
            self._awaited.pop(request_id, None)
        self._loads = list(orders.loads)
        for look in orders.awaited:
            self._awaited.setdefault(look.request_id, []).append(look)
        fresh = {(look.group, block) for look in orders.before if look.look == COMPUTED for block in look.blocks}
        for each in again:
            numbers = {seen.number for seen, _ in each.wrong}
            look = _only(each.look, [number in numbers for number in each.look.numbers])
            self._read([look], partial(self._decide, each))
        kept = [look for look in orders.before if look.look != COMPUTED]
        if fresh:
            kept = [_only(look, [(look.group, block) not in fresh for block in look.blocks]) for look in kept]
        computed = [look for look in orders.before if look.look == COMPUTED]
        self._read([*kept, *computed], partial(self._judge_before, set()))
        self._queue.append((_DONE, lambda _: self._turn(orders)))
        if not (self._loads_whole or self._waits_whole):
            self._read(_mixed(self._loads), self._judge_unloaded)
        self._settle()

    def loads_started(self) -> bool:
        """After `start_load_kv`: blocks whose last token this step will compute. Returns whether they must be read layer by
        layer, too, since the connector may load them so."""
        mixed = _mixed(self._loads)
        self._read(mixed, self._judge_mixed)
        self._settle()
        self._layers = [
            (fingerprints.layer_by_layer(_blocks(these)), these)
            for group, fingerprints in self._groups.items()
            if (these := [look for look in mixed if look.group == group])
            and not (self._loads_whole and fingerprints.is_on_cpu)
        ]
        return bool(self._layers)

    def layer_loaded(self, name: str) -> None:
        """After `wait_for_layer_load` of a layer, before the forward pass writes into it."""
        for layers, looks in self._layers:
            if (reading := layers.read(name)) is not None:
                self._queue.append((reading, partial(_judged, looks, self._judge_waited)))
        self._settle()

    def received(self, request_ids: Iterable[str], failed: Collection[str]) -> None:
        """The connector reports loads that have ended between steps."""
        for request_id in request_ids:
            self._received += self._awaited.pop(request_id, [])
        if failed:
            self._received = [look for look in self._received if look.request_id not in failed]

    def forward_passed(self) -> None:
        """After the forward pass, and before the connector does anything more: a load that ends only now was read before."""
        loads = [_only(look, [number != look.mixed for number in look.numbers]) for look in self._loads]
        self._loads = []
        self._take(loads, read=True)

    def conclude(self, reported: Collection[int]) -> set[int]:
        """After the forward pass: the blocks that vLLM is to compute again, besides those that the connector reports."""
        self.forward_passed()
        received, self._received = self._received, []
        self._take(received, read=False)
        self._reported.update(reported)
        loads, self._taken = self._taken, []
        for look in loads:
            self._recomputed.update(
                ((look.group, block), look.request_id) for block in look.blocks if block in reported
            )
        self._settle(wait=self._heals and bool(loads))
        healed, self._to_heal = self._to_heal, set()
        if healed:
            for fingerprints in self._groups.values():
                fingerprints.fill_with_zeros(sorted(healed))
        return healed

    def end(self) -> None:
        """Nothing more will happen: what is left is told."""
        self.begin(None)
        self._settle(wait=True)
        for told in self._quiet.values():
            self._tell(told)
        self._quiet.clear()

    # Reading.

    def _take(self, loads: Sequence[Look], *, read: bool) -> None:
        """Take the fingerprints of loaded blocks, which `conclude` judges; a forward pass may have `read` them."""
        self._taken += loads
        self._read(loads, partial(self._judge_loaded, self._reported, read))

    def _read(self, looks: Sequence[Look], judge: Judge) -> None:
        """Take the fingerprints of the blocks of these looks, and judge them look by look."""
        for group, fingerprints in self._groups.items():
            these = [look for look in looks if look.group == group and look.blocks]
            if these:
                self._queue.append((fingerprints.read(_blocks(these)), partial(_judged, these, judge)))

    def _settle(self, *, wait: bool = False) -> None:
        """Judge what is there; of a GPU, without a wait unless it must be."""
        while self._queue and (wait or self._queue[0][0].is_there()):
            reading, judge = self._queue.popleft()
            judge(reading.values())

    # Judging.

    def _judge_before(self, doubted: set[str], look: Look, seen: list[_Seen]) -> None:
        if look.look == COMPUTED:
            self._judge_computed(doubted, look, seen)
        else:
            self._judge_kept(doubted, look, seen)

    def _judge_computed(self, doubted: Collection[str], look: Look, seen: list[_Seen]) -> None:
        """What a request has computed is right if it had met nothing wrong, and in doubt if that came to light just now."""
        told = self._told(look, len(seen))
        is_tainted = look.request_id in self._tainted
        for each in seen:
            key, block = (look.group, each.hash), (look.group, each.block)
            self._recomputed.pop(block, None)
            is_right = not is_tainted and self._is_as_computed(look, each)
            self._last[block] = _Last(each.hash, each.folded, is_right, look.request_id)
            if is_right:
                place = Place(look.request_id, self._token(look, each), look.identity)
                self._truth.learn(key, each.folded, each.layers, place)
                if self._shares:
                    self._share(told, look, each)
            elif look.request_id in self._tainted and look.request_id not in doubted:
                self._truth.poison(key, each.folded)
            else:
                self._truth.doubt(key)
                told.unknown += 1
        self._say(told)

    def _is_as_computed(self, look: Look, seen: _Seen) -> bool:
        """Of a block that a request has just computed: whether that holds for all of it."""
        if seen.number != look.mixed:
            return True
        before = self._mixed.get(look.request_id, {}).pop((look.group, seen.number), None)
        key = (look.group, seen.hash)
        if before is True or self._truth.is_right(key, seen.folded):
            return True
        if isinstance(before, Wrong):
            told = self._told(look._replace(look=LOADED), 1)
            self._wrong(told, look, seen, DRIFT, before, "")
            self._say(told)
        return False

    def _judge_unloaded(self, look: Look, seen: list[_Seen]) -> None:
        """What right blocks held before already does not show that a connector loads all of them."""
        before = self._before_load.setdefault(look.request_id, {})
        before.update(((look.group, each.block), each.folded) for each in seen)

    def _judge_mixed(self, look: Look, seen: list[_Seen]) -> None:
        """Where a connector does not load the last token, or loads layer by layer, the block is not right yet, and nothing is
        wrong with it. On a GPU its copy may still run on another stream."""
        for each in seen:
            found = self._truth.judge((look.group, each.hash), each.folded, each.layers, look.identity)
            self._loads_whole = self._loads_whole or self._is_loaded(look, each, found)
            knows = self._loads_whole and self._groups[look.group].is_on_cpu
            self._remember_mixed(look, each, found if knows or found is True else None)

    def _judge_waited(self, look: Look, seen: list[_Seen]) -> None:
        """All that the connector loads of these blocks is there."""
        for each in seen:
            found = self._truth.judge((look.group, each.hash), each.folded, each.layers, look.identity)
            self._waits_whole = self._waits_whole or self._is_loaded(look, each, found)
            is_wrong = isinstance(found, Wrong) and (self._waits_whole or found.holds is not UNKNOWN)
            self._remember_mixed(look, each, found if is_wrong or found is True else None)

    def _is_loaded(self, look: Look, seen: _Seen, found: Wrong | bool | None) -> bool:
        before = self._before_load.get(look.request_id, {})
        return found is True and before.get((look.group, seen.block), seen.folded) != seen.folded

    def _remember_mixed(self, look: Look, seen: _Seen, found: Wrong | bool | None) -> None:
        self._mixed.setdefault(look.request_id, {})[look.group, seen.number] = found

    def _judge_loaded(self, reported: Collection[int], read: bool, look: Look, seen: list[_Seen]) -> None:
        seen = [each for each in seen if each.block not in reported]
        told, is_recomputed = self._told(look, len(seen)), False
        may_be_clean = not read and look.request_id not in self._tainted
        again: list[tuple[_Seen, Wrong]] = []
        for each in seen:
            key = (look.group, each.hash)
            found = self._truth.judge(key, each.folded, each.layers, look.identity)
            self._last[look.group, each.block] = _Last(each.hash, each.folded, found is True, look.request_id)
            if each.number == look.mixed:
                self._remember_mixed(look, each, found)
            if found is None:
                told.unknown += 1
                self._truth.doubt(key)
                self._share(told, look, each)
            elif isinstance(found, Wrong):
                self._tainted.add(look.request_id)
                if self._heals:
                    self._wrong(told, look, each, DRIFT, found, "")
                    is_recomputed = True
                else:
                    again.append((each, found))
            if is_recomputed:  # with all that come after it
                self._recomputed[look.group, each.block] = look.request_id
        if again:
            self._again.append(_Again(look, again, may_be_clean))
            told.blocks -= len(again)  # the next look counts them
        self._say(told, at_once=True)

    def _judge_kept(self, doubted: set[str], look: Look, seen: list[_Seen]) -> None:
        """Of blocks that a request has taken over, or holds."""
        told = self._told(look, 0)
        for each in seen:
            block = (look.group, each.block)
            if block in self._recomputed:
                continue
            told.blocks += 1
            found = self._truth.judge((look.group, each.hash), each.folded, each.layers, look.identity)
            last = self._last.get(block)
            if last is not None and last.hash != each.hash:
                last = None
            was_right = last is not None and last.is_right
            of = look.request_id if last is None else last.of
            if last is not None and last.fingerprint == each.folded and (was_right or of == look.request_id):
                continue  # judged before, whatever is forgotten meanwhile
            self._last[block] = _Last(each.hash, each.folded, found is True, of)
            if found is None and not was_right:
                told.unknown += 1
            elif found is not True:
                if look.look == HELD and look.request_id not in self._tainted:
                    doubted.add(look.request_id)
                wrong = found if isinstance(found, Wrong) else Wrong(UNKNOWN, ())
                self._wrong(told, look, each, ROT if was_right else DRIFT, wrong, "" if was_right else of)
        self._say(told)

    def _decide(self, again: _Again, look: Look, seen: list[_Seen]) -> None:
        """Blocks of a load were wrong when it counted as ended: those were early that have changed, and are not wrong now."""
        told, are_early = self._told(look, len(seen)), []
        for each, (before, wrong) in zip(seen, again.wrong, strict=True):
            found = self._truth.judge((look.group, each.hash), each.folded, each.layers, look.identity)
            is_early = each.folded != before.folded and not isinstance(found, Wrong)
            are_early.append(is_early)
            self._last[look.group, each.block] = _Last(each.hash, each.folded, found is True, look.request_id)
            self._wrong(told, look, before, EARLY if is_early else DRIFT, wrong, "")
            if is_early and each.number == look.mixed:
                self._remember_mixed(look, each, found)
        if again.may_be_clean and all(are_early):
            self._tainted.discard(look.request_id)
        self._say(told)

    def _wrong(self, told: Told, look: Look, seen: _Seen, kind: str, wrong: Wrong, of: str) -> None:
        self._tainted.add(look.request_id)
        if self._heals and kind is not EARLY:
            self._to_heal.add(seen.block)
            self._recomputed[look.group, seen.block] = look.request_id
            told.healed = True
        name = (look.request_id, seen.block, seen.hash)
        if name not in self._named:
            _remember(self._named, name, None)
            of = "" if of == look.request_id else of
            told.wrong.append(WrongBlock(kind, seen.block, self._token(look, seen), seen.hash, wrong, of))
        else:  # nobody may take it for right
            told.blocks -= 1

    # Telling.

    def _told(self, look: Look, blocks: int) -> Told:
        return Told(look.request_id, look.look, look.group, look.identity, blocks)

    def _token(self, look: Look, seen: _Seen) -> int:
        return seen.number * self._block_sizes[look.group]

    def _share(self, told: Told, look: Look, seen: _Seen) -> None:
        told.hashes.append(seen.hash)
        told.fingerprints.append(seen.folded)
        told.tokens.append(self._token(look, seen))

    def _say(self, told: Told, *, at_once: bool = False) -> None:
        """Tell it, with what was counted before; or count it, where all is well."""
        name = (told.request_id, told.look, told.group)
        if (before := self._quiet.pop(name, None)) is not None:
            told.blocks += before.blocks
            told.unknown += before.unknown
        if not (told.blocks or told.wrong):
            return
        if at_once or told.wrong or told.hashes:
            self._tell(told)
        else:
            _remember(self._quiet, name, told)

    def _turn(self, orders: Orders) -> None:
        """What was computed until now is judged: requests begin anew, or end."""
        self._tainted.difference_update(orders.rewound)
        for request_id in orders.begun:
            self._begins(request_id)
        for request_id in orders.ended:
            self._ended(request_id)

    def _begins(self, request_id: str) -> None:
        """It has other blocks."""
        self._tainted.discard(request_id)
        self._mixed.pop(request_id, None)
        self._before_load.pop(request_id, None)
        if request_id in self._recomputed.values():
            self._recomputed = {block: of for block, of in self._recomputed.items() if of != request_id}

    def _ended(self, request_id: str) -> None:
        self._begins(request_id)
        self._awaited.pop(request_id, None)
        for look in (COMPUTED, ADMITTED, HELD):
            for group in self._groups:
                if (told := self._quiet.pop((request_id, look, group), None)) is not None:
                    self._tell(told)


class _Done:
    """Takes its turn among readings."""

    def is_there(self) -> bool:
        return True

    def values(self) -> None:
        return None


_DONE = _Done()


def _judged(looks: Sequence[Look], judge: Judge, values: Mapping[int, tuple[int, Sequence[int]]]) -> None:
    for look in looks:
        blocks = zip(look.numbers, look.blocks, look.hashes, strict=True)
        judge(look, [_Seen(number, block, short, *values[block]) for number, block, short in blocks])


def _mixed(loads: Sequence[Look]) -> list[Look]:
    """The looks at those blocks of which the last token is not loaded."""
    return [look for each in loads if (look := _only(each, [n == each.mixed for n in each.numbers])).blocks]


def _blocks(looks: Sequence[Look]) -> list[int]:
    return sorted({block for look in looks for block in look.blocks})


def _only(look: Look, chosen: Sequence[bool]) -> Look:
    """The look at the chosen ones of its blocks."""
    if all(chosen):
        return look
    numbers, blocks, hashes = (tuple(compress(part, chosen)) for part in (look.numbers, look.blocks, look.hashes))
    return look._replace(numbers=numbers, blocks=blocks, hashes=hashes)


def _remember(some: OrderedDict[Any, Any], name: Any, value: Any) -> None:
    some[name] = value
    if len(some) > MOST_REMEMBERED:
        some.popitem(last=False)
