"""Judges the contents of blocks: by the references, and by the content of each block at its last check."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import compress, repeat
from operator import not_
from typing import NamedTuple

from kvtrail.connector.fingerprints.fingerprint import ROW, UNREPORTED_BITS
from kvtrail.connector.fingerprints.plan import ADMITTED, COMPUTED, HELD, LOADED, Check
from kvtrail.connector.fingerprints.references import References
from kvtrail.connector.fingerprints.result import DRIFT, EARLY, ROT, UNKNOWN, CheckResult, Holds, Match, Results

BlockKey = tuple[int, int]
"""The number of a KV cache group, and a block's id."""


class ReadBlock(NamedTuple):
    """One block of a check, with its fingerprint as `content`."""

    number: int
    block: int
    hash: int
    content: int


JudgeOne = Callable[[Check, Sequence[int], CheckResult], None]
"""Judges one check, with the fingerprints of its blocks, into this result."""
LastCheck = tuple[int, int, bool, str]
"""A block at its last check: its hash, its fingerprint, whether the fingerprint was right, and the request that had filled
the block. A plain tuple, since a step creates hundreds."""
_UNCHECKED = -1
"""In place of a fingerprint: the block was not checked before."""


class Recheck(NamedTuple):
    """Mismatches of a load, which the next step's check decides. If all of them were read too early, and `may_be_clean` is
    set, the request has met no mismatch: no forward pass had read the blocks."""

    check: Check
    mismatches: list[tuple[ReadBlock, Holds]]
    may_be_clean: bool


class Judge:
    """Judges the blocks of one rank.

    Attributes:
        heals: whether mismatched blocks are recomputed.
        shares: whether computed fingerprints are reported for other engines.
        mismatched: ids of the blocks that were a mismatch at their last check.
        rechecks: mismatches that the next step's check decides.
        to_heal: ids of the blocks that vLLM must recompute.
    """

    def __init__(self, references: References, results: Results, *, heals: bool, shares: bool) -> None:
        self._references, self._results = references, results
        self.heals, self.shares = heals, shares
        self.rechecks: list[Recheck] = []
        self.mismatched: set[int] = set()
        self._contaminated: set[str] = set()
        """Requests that have met a mismatch."""
        self._last: defaultdict[int, dict[int, LastCheck]] = defaultdict(dict)
        """Last checks, by KV cache group and block."""
        self.to_heal: set[int] = set()
        self._recomputed: dict[BlockKey, str] = {}
        """The blocks that vLLM recomputes, with the request."""
        self._partial: dict[str, dict[BlockKey, Match]] = {}
        """Results of checks before the last token was computed, for blocks that were loaded except for that token: by
        request, and by group and number."""

    def judge_all(self, judge: JudgeOne, checks: Sequence[Check], contents: Sequence[int]) -> None:
        """Judge checks one by one; `contents` are the fingerprints of all of their blocks, in order."""
        end = 0
        for check in checks:
            begin, end = end, end + len(check.blocks)
            judge(check, contents[begin:end], CheckResult.of(check))

    # Checks before a step: blocks that were computed, taken over or held.

    def before_step(self) -> JudgeOne:
        """A function that judges the checks before one step. Its calls share the set of requests that met a mismatch in this
        step."""
        return partial(self._judge_before, set())

    def _judge_before(self, doubted: set[str], check: Check, contents: Sequence[int], result: CheckResult) -> None:
        judge = self._judge_computed if check.kind == COMPUTED else self._judge_kept
        judge(doubted, check, contents, result)

    def _judge_computed(self, doubted: set[str], check: Check, contents: Sequence[int], result: CheckResult) -> None:
        """Judge computed blocks: they are right if the request had met no mismatch, and in doubt if it met one in this step.
        A step computes hundreds of blocks: `zip` processes them without the interpreter."""
        group, source, blocks = check.group, check.recorded_id, check.blocks
        result.blocks += len(blocks)
        if self._recomputed:
            for block in blocks:
                self._recomputed.pop((group, block), None)
        self.mismatched.difference_update(blocks)
        are_right = [check.request_id not in self._contaminated] * len(blocks)
        if check.partial in check.numbers:
            n = check.numbers.index(check.partial)
            are_right[n] = are_right[n] and self._is_as_computed(check, _read_blocks(check, contents)[n])
        held = zip(check.hashes, contents, are_right, repeat(source, len(blocks)), strict=True)
        self._last[group].update(zip(blocks, held, strict=True))
        right = [*compress(zip(check.numbers, blocks, check.hashes, contents, strict=True), are_right)]
        if len(right) < len(blocks):
            is_clear = check.request_id in self._contaminated and check.request_id not in doubted
            for hash_, content in compress(zip(check.hashes, contents, strict=True), map(not_, are_right)):
                if is_clear:
                    self._references.add_contaminated(group, hash_, content)
                else:
                    self._references.mark_incomplete(group, [hash_])
                    result.unknown += 1
        self._references.add(group, right, source)
        if self.shares:
            result.fingerprints += b"".join(self._row(check, ReadBlock(*block)) for block in right)
        self._results.add(result)

    def _is_as_computed(self, check: Check, block: ReadBlock) -> bool:
        """Whether a block is right that was loaded, except for its last token, which the request has computed."""
        before = self._partial.get(check.request_id, {}).pop((check.group, block.number), None)
        if before is True or self._match(check, block) is True:
            return True
        if before is not None:
            result = CheckResult.of(check._replace(kind=LOADED))
            result.blocks = 1
            self._on_mismatch(result, check, block, DRIFT, before, "")
            self._results.add(result)
        return False

    def _judge_kept(self, doubted: set[str], check: Check, contents: Sequence[int], result: CheckResult) -> None:
        """Judge blocks that a request has taken over, or holds."""
        for block in _read_blocks(check, contents):
            if (check.group, block.block) in self._recomputed:
                continue
            result.blocks += 1
            match = self._match(check, block)
            last = self._last[check.group].get(block.block)
            if last is None or last[0] != block.hash:
                last = block.hash, _UNCHECKED, False, check.recorded_id
            _, before, was_right, source = last
            if block.content == before and (was_right or source == check.recorded_id):
                continue  # judged before; the references may have forgotten the hash since
            was_right = was_right and self._references.is_complete(check.group, block.hash)
            self._remember(check.group, block, match, source)
            if match is None and not was_right:
                result.unknown += 1
                if check.kind == ADMITTED and self.shares:  # a load of another engine's KV may have left it wrong
                    result.fingerprints += self._row(check, block)
            elif match is not True:
                if check.kind == HELD and check.request_id not in self._contaminated:
                    doubted.add(check.request_id)
                self.mismatched.add(block.block)
                kind, source = (ROT, "") if was_right else (DRIFT, source)
                self._on_mismatch(result, check, block, kind, UNKNOWN if match is None else match, source)
        self._results.add(result, at_once=bool(result.fingerprints))

    def _remember_partial(self, check: Check, number: int, match: Match) -> None:
        self._partial.setdefault(check.request_id, {})[check.group, number] = match

    # Loads.

    def judge_loaded(
        self, reported: Collection[int], read: bool, check: Check, contents: Sequence[int], result: CheckResult
    ) -> None:
        """Judge a load, without the blocks that the connector `reported` as failed. `read`: a forward pass may have read the
        blocks."""
        blocks = [each for each in _read_blocks(check, contents) if each.block not in reported]
        result.blocks += len(blocks)
        is_recomputed = False
        may_be_clean = not read and check.request_id not in self._contaminated
        rechecked: list[tuple[ReadBlock, Holds]] = []
        self._note_precision(check, blocks)
        for block in blocks:
            match = self._match(check, block)
            self.mismatched.discard(block.block)
            self._remember(check.group, block, match, check.recorded_id)
            if block.number == check.partial:
                self._remember_partial(check, block.number, match)
            if match is None:
                result.unknown += 1
                if not (read and block.number == check.partial):
                    self._references.mark_incomplete(check.group, [block.hash])
                    result.fingerprints += self._row(check, block)
            elif match is not True:
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

    def _note_precision(self, check: Check, blocks: Sequence[ReadBlock]) -> None:
        """Note whether a load copied exactly the computed content."""
        references = self._references
        if not references.is_exact:
            references.is_exact = any(references.contains(check.group, each.hash, each.content) for each in blocks)

    def judge_handed_over(self, check: Check, wrong: Check) -> None:
        """Report a load of KV that another engine handed over: the blocks of `wrong` differ from that engine's."""
        result = CheckResult.of(check)
        result.blocks, result.healed = len(check.blocks), self.heals
        if not self.heals:
            self._contaminated.add(check.request_id)
            self.mismatched.update(wrong.blocks)
        for number, block, hash_ in zip(wrong.numbers, wrong.blocks, wrong.hashes, strict=True):
            token = self._references.first_token(check.group, number)
            self._results.add_mismatch(result, check, block, token, hash_, DRIFT, UNKNOWN, "")
        self._results.add(result, at_once=True)

    def judge_again(self, recheck: Recheck, check: Check, contents: Sequence[int], result: CheckResult) -> None:
        """Judge mismatches of a load again. Blocks that have changed since, and are right now, were read too early."""
        result.blocks += len(contents)
        are_early = []
        for block, (before, holds) in zip(_read_blocks(check, contents), recheck.mismatches, strict=True):
            match = self._match(check, block)
            is_early = block.content != before.content and (match is True or match is None)
            are_early.append(is_early)
            self._remember(check.group, block, match, check.recorded_id)
            self._on_mismatch(result, check, before, EARLY if is_early else DRIFT, holds, "")
            if is_early and block.number == check.partial:
                self._remember_partial(check, block.number, match)
        if recheck.may_be_clean and all(are_early):
            self._contaminated.discard(check.request_id)
        self._results.add(result)

    def _remember(self, group: int, block: ReadBlock, match: Match, source: str) -> None:
        """Note the content of a block at this check, and the request that had filled it."""
        self._last[group][block.block] = block.hash, block.content, match is True, source

    def _match(self, check: Check, block: ReadBlock) -> Match:
        is_whole = block.number != check.partial
        return self._references.match(check.group, block.hash, block.content, is_whole=is_whole)

    def _on_mismatch(
        self, result: CheckResult, check: Check, block: ReadBlock, kind: str, holds: Holds, source: str
    ) -> None:
        self._contaminated.add(check.request_id)
        if self.heals and kind is not EARLY:
            self.to_heal.add(block.block)
            self._recomputed[check.group, block.block] = check.request_id
            result.healed = True
        token = self._references.first_token(check.group, block.number)
        self._results.add_mismatch(result, check, block.block, token, block.hash, kind, holds, source)

    # Reports for other engines.

    def _row(self, check: Check, block: ReadBlock) -> bytes:
        token = self._references.first_token(check.group, block.number)
        return ROW.pack(block.hash, block.content >> UNREPORTED_BITS, token)

    # State of requests and blocks.

    def has_contaminated(self, request_ids: Iterable[str]) -> bool:
        """Whether one of these requests has met a mismatch."""
        return not self._contaminated.isdisjoint(request_ids)

    def mark_recomputed(self, group: int, block: int, request_id: str) -> None:
        """Note that vLLM recomputes this block for this request."""
        self._recomputed[group, block] = request_id

    def on_rewind(self, request_ids: Iterable[str]) -> None:
        """Note that these requests recompute failed loads."""
        self._contaminated.difference_update(request_ids)

    def on_restart(self, request_id: str) -> None:
        """Note that a request has other blocks now, or none."""
        self._contaminated.discard(request_id)
        self._partial.pop(request_id, None)
        if request_id in self._recomputed.values():
            self._recomputed = {block: of for block, of in self._recomputed.items() if of != request_id}


def _read_blocks(check: Check, contents: Sequence[int]) -> list[ReadBlock]:
    """The blocks of a check, with their fingerprints."""
    return [*map(ReadBlock, check.numbers, check.blocks, check.hashes, contents)]
