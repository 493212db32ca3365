"""Judges what blocks hold: by the references, and by what each block held when it was last checked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from kvtrail.connector.fingerprints.mismatch import UNKNOWN, Match, Mismatch
from kvtrail.connector.fingerprints.plan import ADMITTED, COMPUTED, HELD, LOADED, Check
from kvtrail.connector.fingerprints.reading import Values, fingerprints_in
from kvtrail.connector.fingerprints.references import BlockFingerprint, References
from kvtrail.connector.fingerprints.result import DRIFT, EARLY, ROT, CheckResult, Results
from kvtrail.connector.fingerprints.slim import Array

MAX_NAMED = 8
"""How many mismatches of a load are searched for the origin of what they hold."""
BlockKey = tuple[int, int]
"""The number of a KV cache group, and a block's id."""
JudgeOne = Callable[[Check, list[BlockFingerprint], CheckResult], None]


class LastCheck(NamedTuple):
    """What a block held when it was last checked, whether that was right, and who had filled it."""

    block: BlockFingerprint
    is_right: bool
    source: str


class Recheck(NamedTuple):
    """Mismatches of a load, which the next step's check decides. If all of them were just early, a request that
    `may_be_clean` has met no mismatch: no forward pass had read them."""

    check: Check
    mismatches: list[tuple[BlockFingerprint, Mismatch]]
    may_be_clean: bool


class Judge:
    """Judges the blocks of one rank.

    Attributes:
        heals: whether mismatched blocks are computed again.
        shares: whether what is computed is reported for other engines.
        loads_partial: whether this connector is known to load the last token of a partially computed block, too, and before
            the forward pass.
        loads_partial_by_layer: likewise, layer by layer in the forward pass.
        mismatched: ids of the blocks that were a mismatch when they were last checked.
        rechecks: mismatches that the next step's check decides.
    """

    def __init__(
        self,
        references: References,
        results: Results,
        *,
        num_blocks: Mapping[int, int],
        on_cpu: Collection[int],
        heals: bool,
        shares: bool,
    ) -> None:
        """
        Args:
            num_blocks: of the groups with slim fingerprints, by the number of the KV cache group.
            on_cpu: the groups where a copy is over when the call that made it returns.
            heals: mismatched blocks are computed again.
            shares: what is computed is reported for other engines.
        """
        self._references, self._results = references, results
        self._on_cpu, self.heals, self.shares = on_cpu, heals, shares
        self.rechecks: list[Recheck] = []
        self.loads_partial = self.loads_partial_by_layer = False
        self.mismatched: set[int] = set()
        self._contaminated: set[str] = set()
        """Requests that have met a mismatch."""
        self._last: dict[BlockKey, LastCheck] = {}
        self._right = {group: np.zeros(count, dtype=np.uint64) for group, count in num_blocks.items()}
        """By group, the hash under which a block was right when it was last checked, where there is nothing more to
        remember of it."""
        self._to_heal: set[int] = set()
        self._recomputed: dict[BlockKey, str] = {}
        """Blocks that vLLM computes again, and for which request."""
        self._partial: dict[str, dict[BlockKey, Match]] = {}
        """Blocks that are loaded but for their last token, by request, and by group and number: what they were before that
        was computed."""
        self._before_load: dict[str, dict[BlockKey, int]] = {}
        """What such blocks held before their load, by request."""

    def judge_all(
        self,
        judge: JudgeOne,
        checks: Sequence[Check],
        values: Values,
        *,
        each: bool = False,
        but_partial: bool = False,
        excluded: Set[int] = frozenset(),
    ) -> None:
        """Judge checks one by one: `each` block, or only those that are not plain; with `excluded` blocks, no check is plain.
        `but_partial`: of a partially computed block, the full fingerprint is not of what was loaded."""
        full, slim = values
        if slim is None:
            for check in checks:
                judge(check, fingerprints_in(check, full, but_partial, None), CheckResult.of(check))
            return
        hashes, contents = slim
        right: Any = ()
        end = 0
        if checks[0].kind != COMPUTED or each:
            right = self._references.slim_matches(checks[0].group, hashes, contents)
        for check in checks:
            here = slice(end, end := end + len(check.blocks))
            held, result = contents[here], CheckResult.of(check)
            rest: Array | None = None
            is_skimmed = False
            if each or (excluded and not excluded.isdisjoint(check.blocks)):
                pass
            elif check.kind != COMPUTED:
                is_skimmed = self._references.skim(check, hashes[here], held, right[here], result)
            elif check.request_id not in self._contaminated:
                rest = self._references.skim_computed(check, hashes[here], held, result, reports=self.shares)
                is_skimmed = True
            if not is_skimmed:
                judge(check, fingerprints_in(check, full, but_partial, held.tolist()), result)
                continue
            self._on_skimmed(check, hashes[here], rest is not None or right[here].all())
            blocks: list[BlockFingerprint] = []
            if rest is not None and rest.any():
                blocks = list(compress(fingerprints_in(check, full, but_partial, held.tolist()), rest))
            judge(check, blocks, result)
        self._references.add_skimmed()

    def _on_skimmed(self, check: Check, hashes: Any, is_right: bool) -> None:
        """Of these blocks nothing else is remembered than whether they were right."""
        if check.kind in (COMPUTED, LOADED):
            blocks = list(check.blocks)
            self._right[check.group][blocks] = hashes if is_right else 0
            self.mismatched.difference_update(blocks)
            if self._last or self._recomputed:
                for block in blocks:
                    self._last.pop((check.group, block), None)
                    if check.kind == COMPUTED:
                        self._recomputed.pop((check.group, block), None)
        if check.kind == LOADED and check.partial is not None and check.partial in check.numbers:
            self._remember_partial(check, check.partial, True)

    # Before a step: blocks that were computed, taken over or held.

    def before_step(self) -> JudgeOne:
        """Judges the checks before one step."""
        doubted: set[str] = set()  # requests that met a mismatch just now

        def judge(check: Check, blocks: list[BlockFingerprint], result: CheckResult) -> None:
            if check.kind == COMPUTED:
                self._judge_computed(doubted, check, blocks, result)
            else:
                self._judge_kept(doubted, check, blocks, result)

        return judge

    def _judge_computed(
        self, doubted: Collection[str], check: Check, blocks: list[BlockFingerprint], result: CheckResult
    ) -> None:
        """What a request has computed is right if it had met no mismatch, and in doubt if one came to light just now."""
        result.blocks += len(blocks)
        is_contaminated = check.request_id in self._contaminated
        for block in blocks:
            key = (check.group, block.block)
            self._recomputed.pop(key, None)
            self.mismatched.discard(block.block)
            is_right = not is_contaminated and self._is_as_computed(check, block)
            self._last[key] = LastCheck(block, is_right, check.recorded_id)
            if is_right:
                self._references.add(check, block)
                if self.shares:
                    self._share(result, check, block)
            elif check.request_id in self._contaminated and check.request_id not in doubted:
                self._references.add_contaminated(check, block)
            else:
                self._references.mark_incomplete(check, block)
                result.unknown += 1
        self._results.add(result)

    def _is_as_computed(self, check: Check, block: BlockFingerprint) -> bool:
        """Of a block that a request has just computed: whether that holds for all of it."""
        if block.number != check.partial:
            return True
        before = self._partial.get(check.request_id, {}).pop((check.group, block.number), None)
        if before is True or self._references.contains(check, block):
            return True
        if isinstance(before, Mismatch):
            result = CheckResult.of(check._replace(kind=LOADED))
            result.blocks = 1
            self._on_mismatch(result, check, block, DRIFT, before, "")
            self._results.add(result)
        return False

    def _judge_kept(self, doubted: set[str], check: Check, blocks: list[BlockFingerprint], result: CheckResult) -> None:
        """Of blocks that a request has taken over, or holds."""
        for block in blocks:
            key = (check.group, block.block)
            if key in self._recomputed:
                continue
            result.blocks += 1
            match = self._references.match(check, block)
            last = self._last.get(key)
            if last is not None and last.block.hash != block.hash:
                last = None
            was_right = self._was_right(check, block) if last is None else last.is_right
            source = check.recorded_id if last is None else last.source
            if last is not None and not block.differs(last.block) and (was_right or source == check.recorded_id):
                continue  # judged before, whatever is forgotten meanwhile
            self._last[key] = LastCheck(block, match is True, source)
            if match is None and not was_right:
                result.unknown += 1
                if check.kind == ADMITTED and self.shares:  # a load of another engine's KV may have left it wrong
                    self._share(result, check, block)
            elif match is not True:
                if check.kind == HELD and check.request_id not in self._contaminated:
                    doubted.add(check.request_id)
                mismatch = match if isinstance(match, Mismatch) else Mismatch(UNKNOWN, ())
                self.mismatched.add(block.block)
                kind, source = (ROT, "") if was_right else (DRIFT, source)
                self._on_mismatch(result, check, block, kind, mismatch, source)
        self._results.add(result, at_once=bool(result.slim))

    def _was_right(self, check: Check, block: BlockFingerprint) -> bool:
        """Whether that was all that there was to remember of the block, and what was right is not forgotten."""
        is_noted = check.group in self._right and int(self._right[check.group][block.block]) == block.hash
        return is_noted and self._references.is_complete(check, block)

    # Partially computed blocks: loaded but for their last token.

    def judge_unloaded(self, check: Check, blocks: list[BlockFingerprint], _: CheckResult) -> None:
        """What right blocks held before already does not show that a connector loads all of them."""
        before = self._before_load.setdefault(check.request_id, {})
        before.update(((check.group, each.block), each.full) for each in blocks if each.full is not None)

    def judge_partial(self, check: Check, blocks: list[BlockFingerprint], _: CheckResult) -> None:
        """Where a connector does not load the last token, or loads layer by layer, the block is not right yet, and no
        mismatch. On a GPU its copy may still run on another stream."""
        for block in blocks:
            match = self._references.match(check, block)
            self.loads_partial = self.loads_partial or self._is_loaded(check, block, match)
            knows = self.loads_partial and check.group in self._on_cpu
            self._remember_partial(check, block.number, match if knows or match is True else None)

    def judge_partial_by_layer(self, check: Check, blocks: list[BlockFingerprint], _: CheckResult) -> None:
        """All that the connector loads of these blocks is there."""
        for block in blocks:
            match = self._references.match(check, block)
            self.loads_partial_by_layer = self.loads_partial_by_layer or self._is_loaded(check, block, match)
            knows = isinstance(match, Mismatch) and (self.loads_partial_by_layer or match.holds is not UNKNOWN)
            self._remember_partial(check, block.number, match if knows or match is True else None)

    def _is_loaded(self, check: Check, block: BlockFingerprint, match: Match) -> bool:
        before = self._before_load.get(check.request_id, {})
        return match is True and before.get((check.group, block.block), block.full) != block.full

    def _remember_partial(self, check: Check, number: int, match: Match) -> None:
        self._partial.setdefault(check.request_id, {})[check.group, number] = match

    # Loads.

    def loaded(self, reported: Collection[int], read: bool) -> JudgeOne:
        """Judges loads but for the blocks that the connector `reported` as failed; a forward pass may have `read` them."""

        def judge(check: Check, blocks: list[BlockFingerprint], result: CheckResult) -> None:
            self._judge_loaded(read, check, [each for each in blocks if each.block not in reported], result)

        return judge

    def _judge_loaded(self, read: bool, check: Check, blocks: list[BlockFingerprint], result: CheckResult) -> None:
        result.blocks += len(blocks)
        is_recomputed = False
        may_be_clean = not read and check.request_id not in self._contaminated
        rechecked: list[tuple[BlockFingerprint, Mismatch]] = []
        for block in blocks:
            names = len(rechecked) + len(result.mismatches) < MAX_NAMED
            match = self._references.match(check, block, names=names)
            self._last[check.group, block.block] = LastCheck(block, match is True, check.recorded_id)
            if block.number == check.partial and (
                isinstance(match, Mismatch) or not (read and self._references.is_sampled(block.hash))
            ):
                self._remember_partial(check, block.number, match)
            if match is None:
                result.unknown += 1
                if not (read and block.number == check.partial):
                    self._references.mark_incomplete(check, block)
                    self._share(result, check, block)
            elif isinstance(match, Mismatch):
                self._contaminated.add(check.request_id)
                self.mismatched.add(block.block)
                if self.heals:
                    self._on_mismatch(result, check, block, DRIFT, match, "")
                    is_recomputed = True
                else:
                    rechecked.append((block, match))
            if is_recomputed:  # with all that come after it
                self._recomputed[check.group, block.block] = check.request_id
        if rechecked:
            self.rechecks.append(Recheck(check, rechecked, may_be_clean))
            result.blocks -= len(rechecked)  # the next check counts them
        self._results.add(result, at_once=True)

    def judge_handed_over(self, check: Check, wrong: Check) -> None:
        """Of the blocks of a load of what another engine has handed over, these do not hold what it had."""
        result = CheckResult.of(check)
        result.blocks, result.healed = len(check.blocks), self.heals
        if not self.heals:
            self._contaminated.add(check.request_id)
            self.mismatched.update(wrong.blocks)
        for number, block, hash_ in zip(wrong.numbers, wrong.blocks, wrong.hashes, strict=True):
            token = self._references.first_token(check, number)
            self._results.add_mismatch(result, check, block, token, hash_, DRIFT, Mismatch(UNKNOWN, ()), "")
        self._results.add(result, at_once=True)

    def rechecked(self, recheck: Recheck) -> JudgeOne:
        """Judges mismatches of a load again. They were there when it counted as ended: those were early that have changed,
        and are none now."""

        def judge(check: Check, blocks: list[BlockFingerprint], result: CheckResult) -> None:
            result.blocks += len(blocks)
            are_early = []
            for block, (before, mismatch) in zip(blocks, recheck.mismatches, strict=True):
                match = self._references.match(check, block, names=False)
                is_early = block.differs(before) and not isinstance(match, Mismatch)
                are_early.append(is_early)
                self._last[check.group, block.block] = LastCheck(block, match is True, check.recorded_id)
                self._on_mismatch(result, check, before, EARLY if is_early else DRIFT, mismatch, "")
                if is_early and block.number == check.partial:
                    self._remember_partial(check, block.number, match)
            if recheck.may_be_clean and all(are_early):
                self._contaminated.discard(check.request_id)
            self._results.add(result)

        return judge

    def _on_mismatch(
        self, result: CheckResult, check: Check, block: BlockFingerprint, kind: str, mismatch: Mismatch, source: str
    ) -> None:
        self._contaminated.add(check.request_id)
        if self.heals and kind is not EARLY:
            self._to_heal.add(block.block)
            self._recomputed[check.group, block.block] = check.request_id
            result.healed = True
        token = self._references.token(check, block)
        self._results.add_mismatch(result, check, block.block, token, block.hash, kind, mismatch, source)

    def _share(self, result: CheckResult, check: Check, block: BlockFingerprint) -> None:
        if block.full is not None:
            result.hashes.append(block.hash)
            result.fingerprints.append(block.full)
            result.tokens.append(self._references.token(check, block))
        result.slim += self._references.row(check, block)

    # What is known of requests and blocks.

    def has_contaminated(self, request_ids: Iterable[str]) -> bool:
        """Whether one of these requests has met a mismatch."""
        return not self._contaminated.isdisjoint(request_ids)

    def mark_recomputed(self, group: int, block: int, request_id: str) -> None:
        """vLLM computes this block again."""
        self._recomputed[group, block] = request_id

    @property
    def has_to_heal(self) -> bool:
        """Whether there are blocks to heal."""
        return bool(self._to_heal)

    def take_to_heal(self) -> set[int]:
        """The blocks to be healed, once."""
        healed, self._to_heal = self._to_heal, set()
        return healed

    def miss(self, check: Check) -> None:
        """Blocks were computed under these hashes that nobody has looked at."""
        self._references.miss(check)

    def on_rewind(self, request_ids: Iterable[str]) -> None:
        """These requests compute failed loads again."""
        self._contaminated.difference_update(request_ids)

    def on_restart(self, request_id: str) -> None:
        """A request has other blocks, or none."""
        self._contaminated.discard(request_id)
        self._partial.pop(request_id, None)
        self._before_load.pop(request_id, None)
        if request_id in self._recomputed.values():
            self._recomputed = {block: of for block, of in self._recomputed.items() if of != request_id}

    def clear(self) -> None:
        """Other weights compute other contents."""
        self._references.clear()
