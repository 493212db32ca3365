"""A worker's side: looks at blocks when the scheduler's orders say so, and judges what they hold.

On a CPU a look is judged at once. On a GPU its fingerprints are queued behind the engine's work and judged when they are
there, in order, by one of the next steps; only with healing does the engine wait for them, where something was loaded.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import compress
from typing import Any

import numpy as np

from kvtrail.connector.fingerprints.looks import (
    DONE,
    Again,
    BothReadings,
    Judge,
    Last,
    Told,
    Waiting,
    WrongBlock,
    blocks_of,
    judged,
    mixed_of,
    only,
    seen_in,
)
from kvtrail.connector.fingerprints.orders import ADMITTED, COMPUTED, HELD, LOADED, NO_ORDERS, Look, Orders
from kvtrail.connector.fingerprints.references import NO_QUICK, ROW, Quick, References, Seen
from kvtrail.connector.fingerprints.truth import UNKNOWN, Wrong

DRIFT, ROT, EARLY = "drift", "rot", "early"
MOST_REMEMBERED = 65_536
"""Wrong blocks that were told, and requests whose looks are counted."""
MOST_NAMED = 8
"""Wrong blocks of a load of which it is searched whose content they hold."""
MOST_ADMITTED = 64
"""Of more blocks that a request takes over, and of which none is known to be wrong, the slim fingerprints are of so many."""
MOST_WAITING = 64
"""Computed blocks that wait to be judged."""
MOST_SLIM = 64 * ROW.itemsize
"""Bytes of slim fingerprints that wait to be reported."""
Block = tuple[int, int]
"""The number of a KV cache group, and a block's id."""


class Checks:
    """The looks of one rank at its blocks."""

    def __init__(
        self,
        groups: Mapping[int, Any],
        block_sizes: Mapping[int, int],
        references: References,
        *,
        slims: Mapping[int, Any],
        heals: bool,
        shares: bool,
        tell: Callable[[Told], None],
    ) -> None:
        """
        Args:
            groups: `Fingerprints` by the number of the KV cache group.
            block_sizes: tokens of a block, likewise.
            slims: `SlimFingerprints`, likewise; empty where they are not looked at.
            heals: wrong blocks are filled with zeros and named to vLLM.
            shares: what is computed is told for other engines.
            tell: is called with what there is to tell.
        """
        self._groups = groups
        self._block_sizes = block_sizes
        self._references = references
        self._slims = slims
        self._slim_sees_mixed = bool(slims) and all(each.skips_last for each in slims.values())
        self._heals, self._shares, self._tell = heals, shares, tell
        self._queue: deque[tuple[Any, Callable[[Any], None]]] = deque()
        """Fingerprints that are being taken, and what judges them."""
        self._waiting: dict[int, Waiting] = {}
        """Slim fingerprints of computed blocks, by group: judged together, for what that costs a step."""
        self._gone: list[str] = []
        """Requests that have ended since some of these began to wait."""
        self._loads: list[Look] = []
        self._awaited: dict[str, list[Look]] = {}
        """Loads that end between steps, by request."""
        self._received: list[Look] = []
        self._taken: list[Look] = []
        """Loads of this step whose fingerprints have been taken."""
        self._reported: set[int] = set()
        """Blocks of this step's loads that the connector itself reports as not loaded."""
        self._again: list[Again] = []
        self._to_heal: set[int] = set()
        self._tainted: set[str] = set()
        """Requests that have met something wrong."""
        self._last: dict[Block, Last] = {}
        self._right = {group: np.zeros(each.num_blocks, dtype=np.uint64) for group, each in slims.items()}
        """By group, the hash under which a block was right when it was last looked at, where there is nothing more to
        remember of it."""
        self._wrong_ids: set[int] = set()
        """Blocks that were wrong when they were last looked at."""
        self._random = random.Random(0)
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
            self._hurry()
            self._settle()
            self._references.forget()
        for request_id in orders.begun:
            self._awaited.pop(request_id, None)
        self._loads = list(orders.loads)
        for look in orders.awaited:
            self._awaited.setdefault(look.request_id, []).append(look)
        fresh = {(look.group, block) for look in orders.before if look.look == COMPUTED for block in look.blocks}
        for each in again:
            numbers = {seen.number for seen, _ in each.wrong}
            look = only(each.look, [number in numbers for number in each.look.numbers])
            self._read([look], partial(self._decide, each), each=True)
        kept = [look for look in orders.before if look.look != COMPUTED]
        if fresh:
            kept = [only(look, [(look.group, block) not in fresh for block in look.blocks]) for look in kept]
        kept = [self._fewer(look) for look in kept]
        computed = [look for look in orders.before if look.look == COMPUTED]
        if kept or not self._can_wait(computed):
            self._read([*kept, *computed], partial(self._judge_before, set()))
        elif computed:
            self._read_slim(computed)
        if changed := (*orders.begun, *orders.rewound, *orders.ended):
            if self._queue or not self._tainted.isdisjoint(changed):
                self._hurry()
            self._queue.append((DONE, lambda _: self._turn(orders)))
        if not (self._loads_whole or self._waits_whole):
            self._read_all_bytes(mixed_of(self._loads), self._judge_unloaded)
        self._settle()

    def loads_started(self) -> bool:
        """After `start_load_kv`: blocks whose last token this step will compute. Returns whether they must be read layer by
        layer, too, since the connector may load them so."""
        mixed = [look for each in mixed_of(self._loads) if (look := self._sampled(each)).blocks]
        self._read_all_bytes(mixed, self._judge_mixed)
        self._settle()
        self._layers = [
            (fingerprints.layer_by_layer(blocks_of(these)), these)
            for group, fingerprints in self._groups.items()
            if (these := [look for look in mixed if look.group == group])
            and not (self._loads_whole and fingerprints.is_on_cpu)
        ]
        return bool(self._layers)

    def layer_loaded(self, name: str) -> None:
        """After `wait_for_layer_load` of a layer, before the forward pass writes into it."""
        for layers, looks in self._layers:
            if (reading := layers.read(name)) is not None:
                self._queue.append((reading, partial(judged, looks, self._judge_waited)))
        self._settle()

    def received(self, request_ids: Iterable[str], failed: Collection[str]) -> None:
        """The connector reports loads that have ended between steps."""
        for request_id in request_ids:
            self._received += self._awaited.pop(request_id, [])
        if failed:
            self._received = [look for look in self._received if look.request_id not in failed]

    def forward_passed(self) -> None:
        """After the forward pass, and before the connector does anything more: a load that ends only now was read before."""
        loads, self._loads = self._loads, []
        if not self._slim_sees_mixed:
            loads = [only(look, [number != look.mixed for number in look.numbers]) for look in loads]
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
        self._hurry()
        self.begin(None)
        self._settle(wait=True)
        for told in self._quiet.values():
            self._tell(told)
        self._quiet.clear()

    # Reading.

    def _take(self, loads: Sequence[Look], *, read: bool) -> None:
        """Take the fingerprints of loaded blocks, which `conclude` judges; a forward pass may have `read` them."""
        self._taken += loads
        self._read(loads, partial(self._judge_loaded, self._reported, read), but_mixed=read, but=self._reported)

    def _read(
        self,
        looks: Sequence[Look],
        judge: Judge,
        *,
        each: bool = False,
        but_mixed: bool = False,
        but: Set[int] = frozenset(),
    ) -> None:
        """Take the fingerprints of the blocks of these looks, and judge them look by look: `each` block, or only those that
        are not plain; with blocks in `but`, no look is. `but_mixed`: of a block whose last token was computed, not all bytes
        are those that were loaded."""
        if any(look.blocks for look in looks):
            self._hurry()
        for group, fingerprints in self._groups.items():
            these = [look for look in looks if look.group == group and look.blocks]
            if not these:
                continue
            sampled = [only(look, [not but_mixed or n != look.mixed for n in look.numbers]) for look in these]
            blocks = blocks_of([self._sampled(look) for look in sampled])
            slim = None
            if group in self._slims:
                hashes = np.array([hash_ for look in these for hash_ in look.hashes], dtype=np.uint64)
                slim = hashes, self._slims[group].read([block for look in these for block in look.blocks], hashes)
            reading = BothReadings(fingerprints.read(blocks) if blocks else None, slim)
            self._queue.append((reading, partial(self._judged, these, judge, each, but_mixed, but)))

    def _can_wait(self, computed: Sequence[Look]) -> bool:
        """Whether nothing but slim fingerprints is taken of these blocks."""
        sampled = self._references.is_sampled
        return all(
            look.group in self._slims and look.mixed not in look.numbers and not any(map(sampled, look.hashes))
            for look in computed
        )

    def _read_slim(self, computed: Sequence[Look]) -> None:
        """Read blocks that were just computed, and judge them with those of other steps, before anything else is judged."""
        for group, slim in self._slims.items():
            these = [look for look in computed if look.group == group and look.blocks]
            if these:
                waiting = self._waiting.setdefault(group, Waiting())
                waiting.add(slim, these)
                if waiting.blocks >= MOST_WAITING:
                    self._hurry()

    def _hurry(self) -> None:
        """What waits is next."""
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            judge = partial(self._judge_before, set())
            self._queue.append((each, partial(self._judged, each.looks, judge, False, False, frozenset())))
        if self._gone:
            gone, self._gone = self._gone, []
            self._queue.append((DONE, lambda _: self._tell_quiet(gone)))

    def _fewer(self, look: Look) -> Look:
        """The look at some of the blocks that a request takes over."""
        if (
            len(look.blocks) <= MOST_ADMITTED
            or look.group not in self._slims
            or not self._wrong_ids.isdisjoint(look.blocks)
        ):
            return look
        chosen = {*self._random.sample(look.numbers, MOST_ADMITTED)}
        sampled = self._references.is_sampled
        return only(look, [n in chosen or sampled(short) for n, short in zip(look.numbers, look.hashes, strict=True)])

    def _sampled(self, look: Look) -> Look:
        """The look at those blocks of which all bytes are looked at."""
        return only(look, [self._references.is_sampled(hash_) for hash_ in look.hashes])

    def _read_all_bytes(self, looks: Sequence[Look], judge: Judge) -> None:
        """The same by all bytes alone, of the sampled blocks."""
        if looks:
            self._hurry()
        for group, fingerprints in self._groups.items():
            these = [each for look in looks if look.group == group and (each := self._sampled(look)).blocks]
            if these:
                self._queue.append((fingerprints.read(blocks_of(these)), partial(judged, these, judge)))

    def _settle(self, *, wait: bool = False) -> None:
        """Judge what is there; of a GPU, without a wait unless it must be."""
        while self._queue and (wait or self._queue[0][0].is_there()):
            reading, judge = self._queue.popleft()
            judge(reading.values())

    # Judging.

    def _judged(
        self, looks: Sequence[Look], judge: Judge, each: bool, but_mixed: bool, but: Set[int], values: Any
    ) -> None:
        """Judge looks by both kinds of fingerprints. Of most there is one thing to say of all of their blocks."""
        full, slim = values
        if slim is None:
            for look in looks:
                judge(look, seen_in(look, full, but_mixed, None), NO_QUICK)
            return
        hashes, contents = slim
        right: Any = ()
        end = 0
        if looks[0].look != COMPUTED or each:
            right = self._references.are_right(looks[0].group, hashes, contents)
        for look in looks:
            here = slice(end, end := end + len(look.blocks))
            held, rest, quick = contents[here], None, None
            if each or (but and not but.isdisjoint(look.blocks)):
                pass
            elif look.look != COMPUTED:
                quick = self._references.skim(look, hashes[here], held, right[here])
            elif look.request_id not in self._tainted:
                rest, quick = self._references.skim_computed(look, hashes[here], held, reports=self._shares)
            if quick is None:
                judge(look, seen_in(look, full, but_mixed, held.tolist()), NO_QUICK)
                continue
            self._skimmed(look, hashes[here], rest is not None or right[here].all())
            some = [] if rest is None or not rest.any() else seen_in(look, full, but_mixed, held.tolist())
            judge(look, list(compress(some, rest if rest is not None else ())), quick)
        self._references.learn_skimmed()

    def _skimmed(self, look: Look, hashes: Any, is_right: bool) -> None:
        """Of these blocks nothing else is remembered than whether they were right."""
        if look.look in (COMPUTED, LOADED):
            blocks = list(look.blocks)
            self._right[look.group][blocks] = hashes if is_right else 0
            self._wrong_ids.difference_update(blocks)
            if self._last or self._recomputed:
                for block in blocks:
                    self._last.pop((look.group, block), None)
                    if look.look == COMPUTED:
                        self._recomputed.pop((look.group, block), None)
        if look.look == LOADED and look.mixed in look.numbers:
            self._mixed.setdefault(look.request_id, {})[look.group, look.mixed] = True

    def _judge_before(self, doubted: set[str], look: Look, seen: list[Seen], quick: Quick) -> None:
        if look.look == COMPUTED:
            self._judge_computed(doubted, look, seen, quick)
        else:
            self._judge_kept(doubted, look, seen, quick)

    def _judge_computed(self, doubted: Collection[str], look: Look, seen: list[Seen], quick: Quick) -> None:
        """What a request has computed is right if it had met nothing wrong, and in doubt if that came to light just now."""
        told = self._told(look, len(seen), quick)
        is_tainted = look.request_id in self._tainted
        for each in seen:
            block = (look.group, each.block)
            self._recomputed.pop(block, None)
            self._wrong_ids.discard(each.block)
            is_right = not is_tainted and self._is_as_computed(look, each)
            self._last[block] = Last(each, is_right, look.recorded_id)
            if is_right:
                self._references.learn(look, each)
                if self._shares:
                    self._share(told, look, each)
            elif look.request_id in self._tainted and look.request_id not in doubted:
                self._references.poison(look, each)
            else:
                self._references.doubt(look, each)
                told.unknown += 1
        self._say(told)

    def _is_as_computed(self, look: Look, seen: Seen) -> bool:
        """Of a block that a request has just computed: whether that holds for all of it."""
        if seen.number != look.mixed:
            return True
        before = self._mixed.get(look.request_id, {}).pop((look.group, seen.number), None)
        if before is True or self._references.is_right(look, seen):
            return True
        if isinstance(before, Wrong):
            told = self._told(look._replace(look=LOADED), 1)
            self._wrong(told, look, seen, DRIFT, before, "")
            self._say(told)
        return False

    def _judge_unloaded(self, look: Look, seen: list[Seen], _: Quick) -> None:
        """What right blocks held before already does not show that a connector loads all of them."""
        before = self._before_load.setdefault(look.request_id, {})
        before.update(((look.group, each.block), each.folded) for each in seen if each.folded is not None)

    def _judge_mixed(self, look: Look, seen: list[Seen], _: Quick) -> None:
        """Where a connector does not load the last token, or loads layer by layer, the block is not right yet, and nothing is
        wrong with it. On a GPU its copy may still run on another stream."""
        for each in seen:
            found = self._references.judge(look, each)
            self._loads_whole = self._loads_whole or self._is_loaded(look, each, found)
            knows = self._loads_whole and self._groups[look.group].is_on_cpu
            self._remember_mixed(look, each, found if knows or found is True else None)

    def _judge_waited(self, look: Look, seen: list[Seen], _: Quick) -> None:
        """All that the connector loads of these blocks is there."""
        for each in seen:
            found = self._references.judge(look, each)
            self._waits_whole = self._waits_whole or self._is_loaded(look, each, found)
            is_wrong = isinstance(found, Wrong) and (self._waits_whole or found.holds is not UNKNOWN)
            self._remember_mixed(look, each, found if is_wrong or found is True else None)

    def _is_loaded(self, look: Look, seen: Seen, found: Wrong | bool | None) -> bool:
        before = self._before_load.get(look.request_id, {})
        return found is True and before.get((look.group, seen.block), seen.folded) != seen.folded

    def _remember_mixed(self, look: Look, seen: Seen, found: Wrong | bool | None) -> None:
        self._mixed.setdefault(look.request_id, {})[look.group, seen.number] = found

    def _judge_loaded(self, reported: Collection[int], read: bool, look: Look, seen: list[Seen], quick: Quick) -> None:
        seen = [each for each in seen if each.block not in reported]
        told, is_recomputed = self._told(look, len(seen), quick), False
        may_be_clean = not read and look.request_id not in self._tainted
        again: list[tuple[Seen, Wrong]] = []
        for each in seen:
            found = self._references.judge(look, each, names=len(again) + len(told.wrong) < MOST_NAMED)
            self._last[look.group, each.block] = Last(each, found is True, look.recorded_id)
            if each.number == look.mixed and (
                isinstance(found, Wrong) or not (read and self._references.is_sampled(each.hash))
            ):
                self._remember_mixed(look, each, found)
            if found is None:
                told.unknown += 1
                if not (read and each.number == look.mixed):
                    self._references.doubt(look, each)
                    self._share(told, look, each)
            elif isinstance(found, Wrong):
                self._tainted.add(look.request_id)
                self._wrong_ids.add(each.block)
                if self._heals:
                    self._wrong(told, look, each, DRIFT, found, "")
                    is_recomputed = True
                else:
                    again.append((each, found))
            if is_recomputed:  # with all that come after it
                self._recomputed[look.group, each.block] = look.request_id
        if again:
            self._again.append(Again(look, again, may_be_clean))
            told.blocks -= len(again)  # the next look counts them
        self._say(told, at_once=True)

    def _judge_kept(self, doubted: set[str], look: Look, seen: list[Seen], quick: Quick) -> None:
        """Of blocks that a request has taken over, or holds."""
        told = self._told(look, 0, quick)
        for each in seen:
            block = (look.group, each.block)
            if block in self._recomputed:
                continue
            told.blocks += 1
            found = self._references.judge(look, each)
            last = self._last.get(block)
            if last is not None and last.seen.hash != each.hash:
                last = None
            was_right = self._was_right(look, each) if last is None else last.is_right
            of = look.recorded_id if last is None else last.of
            if last is not None and not each.differs(last.seen) and (was_right or of == look.recorded_id):
                continue  # judged before, whatever is forgotten meanwhile
            self._last[block] = Last(each, found is True, of)
            if found is None and not was_right:
                told.unknown += 1
            elif found is not True:
                if look.look == HELD and look.request_id not in self._tainted:
                    doubted.add(look.request_id)
                wrong = found if isinstance(found, Wrong) else Wrong(UNKNOWN, ())
                self._wrong_ids.add(each.block)
                self._wrong(told, look, each, ROT if was_right else DRIFT, wrong, "" if was_right else of)
        self._say(told)

    def _was_right(self, look: Look, seen: Seen) -> bool:
        """Whether that was all that there was to remember of the block, and what was right is not forgotten."""
        is_noted = look.group in self._right and int(self._right[look.group][seen.block]) == seen.hash
        return is_noted and self._references.knows(look, seen)

    def _decide(self, again: Again, look: Look, seen: list[Seen], _: Quick) -> None:
        """Blocks of a load were wrong when it counted as ended: those were early that have changed, and are not wrong now."""
        told, are_early = self._told(look, len(seen)), []
        for each, (before, wrong) in zip(seen, again.wrong, strict=True):
            found = self._references.judge(look, each, names=False)
            is_early = each.differs(before) and not isinstance(found, Wrong)
            are_early.append(is_early)
            self._last[look.group, each.block] = Last(each, found is True, look.recorded_id)
            self._wrong(told, look, before, EARLY if is_early else DRIFT, wrong, "")
            if is_early and each.number == look.mixed:
                self._remember_mixed(look, each, found)
        if again.may_be_clean and all(are_early):
            self._tainted.discard(look.request_id)
        self._say(told)

    def _wrong(self, told: Told, look: Look, seen: Seen, kind: str, wrong: Wrong, of: str) -> None:
        self._tainted.add(look.request_id)
        if self._heals and kind is not EARLY:
            self._to_heal.add(seen.block)
            self._recomputed[look.group, seen.block] = look.request_id
            told.healed = True
        name = (look.recorded_id, seen.block, seen.hash)
        if name not in self._named:
            _remember(self._named, name, None)
            of = "" if of == look.recorded_id else of
            told.wrong.append(WrongBlock(kind, seen.block, self._token(look, seen), seen.hash, wrong, of))
        else:  # nobody may take it for right
            told.blocks -= 1

    # Telling.

    def _told(self, look: Look, blocks: int, quick: Quick = NO_QUICK) -> Told:
        told = Told(look.request_id, look.look, look.group, look.identity, blocks + quick.blocks, quick.unknown)
        told.slim = quick.reported
        return told

    def _token(self, look: Look, seen: Seen) -> int:
        return seen.number * self._block_sizes[look.group]

    def _share(self, told: Told, look: Look, seen: Seen) -> None:
        if seen.folded is not None:
            told.hashes.append(seen.hash)
            told.fingerprints.append(seen.folded)
            told.tokens.append(self._token(look, seen))
        told.slim += self._references.row(look, seen)

    def _say(self, told: Told, *, at_once: bool = False) -> None:
        """Tell it, with what was counted before; or count it, where all is well."""
        name = (told.request_id, told.look, told.group)
        if (before := self._quiet.pop(name, None)) is not None:
            told.blocks += before.blocks
            told.unknown += before.unknown
            told.slim = before.slim + told.slim
        if not (told.blocks or told.wrong):
            return
        if at_once or told.wrong or told.hashes or len(told.slim) >= MOST_SLIM:
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
        if self._waiting:
            self._gone.append(request_id)
        else:
            self._tell_quiet([request_id])

    def _tell_quiet(self, request_ids: Iterable[str]) -> None:
        """Tell what was counted of requests that have ended."""
        for request_id in request_ids:
            for look in (COMPUTED, ADMITTED, HELD):
                for group in self._groups:
                    if (told := self._quiet.pop((request_id, look, group), None)) is not None:
                        self._tell(told)


def _remember(some: OrderedDict[Any, Any], name: Any, value: Any) -> None:
    some[name] = value
    if len(some) > MOST_REMEMBERED:
        some.popitem(last=False)
