"""The results of checks, and their reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from kvtrail.connector.fingerprints.fingerprint import ROW
from kvtrail.connector.fingerprints.plan import Check
from kvtrail.tracer.events.bounded import BoundedDict

ZEROS, CONTAMINATED, UNKNOWN = "zeros", "poison", "unknown"
"""Recorded names of the kinds."""


class Origin(NamedTuple):
    """Where a content was computed: the request, the block's first token in it (for a recurrent state, the number of tokens
    that it has seen), and the number of the KV cache group."""

    request_id: str
    token: int
    group: int = 0


Holds = str | Origin
"""The content of a mismatched block: zeros, contaminated content, unknown content, or another block's content, by its
origin."""
Match = Holds | Literal[True] | None
"""True for a block that holds a content that was computed for its hash, otherwise its actual content; None if unknown."""

DRIFT, ROT, EARLY = "drift", "rot", "early"
MAX_REMEMBERED = 65_536
"""Maximum numbers of reported mismatches, and of requests with counted checks."""
MAX_BYTES = 64 * ROW.size
"""Maximum number of fingerprints that wait to be reported."""


class MismatchedBlock(NamedTuple):
    """A mismatch of one block: its kind, the block's id, its first token in the request, its hash, what it holds, and
    the request that left it so, or ""."""

    kind: str
    block: int
    token: int
    hash: int
    holds: Holds
    source: str


@dataclass(slots=True)
class CheckResult:
    """The result of a check of a request's blocks.

    Attributes:
        fingerprints: rows for comparison with other engines, each as `fingerprint.ROW`.
        blocks: number of checked blocks.
        unknown: number of blocks that could not be judged.
        healed: whether some are recomputed.
    """

    request_id: str
    kind: str
    group: int
    identity: str
    blocks: int = 0
    unknown: int = 0
    fingerprints: bytes = b""
    mismatches: list[MismatchedBlock] = field(default_factory=list)
    healed: bool = False

    @classmethod
    def of(cls, check: Check) -> CheckResult:
        """The result of a check before any block is judged."""
        return cls(check.request_id, check.kind, check.group, check.identity)


class Results:
    """Reports results: mismatches at once, and results without mismatches as sums.

    Attributes:
        report: called with a result.
    """

    def __init__(self, report: Callable[[CheckResult], None]) -> None:
        self.report = report
        self._reported: BoundedDict[tuple[str, int, int], None] = BoundedDict(MAX_REMEMBERED)
        """Mismatches of a request: its id, the block's, and its hash."""
        self._counted: BoundedDict[str, dict[tuple[str, int], CheckResult]] = BoundedDict(MAX_REMEMBERED)
        """Results that wait until there is something to report, by request, and by kind and KV cache group."""

    def add_mismatch(
        self,
        result: CheckResult,
        check: Check,
        block: int,
        token: int,
        hash_: int,
        kind: str,
        holds: Holds,
        of: str,
    ) -> None:
        """Add a mismatched block. Each is reported once for a request. `of` is the request that filled the block."""
        name = (check.recorded_id, block, hash_)
        if name not in self._reported:
            self._reported[name] = None
            source = "" if of == check.recorded_id else of
            result.mismatches.append(MismatchedBlock(kind, block, token, hash_, holds, source))
        else:  # it must not count as right
            result.blocks -= 1

    def add(self, result: CheckResult, *, at_once: bool = False) -> None:
        """Report a result together with the counts so far, or only add it to the counts if there is nothing to report."""
        counted, what = self._counted.setdefault(result.request_id, {}), (result.kind, result.group)
        if (before := counted.pop(what, None)) is not None:
            result.blocks += before.blocks
            result.unknown += before.unknown
            result.fingerprints = before.fingerprints + result.fingerprints
        if not (result.blocks or result.mismatches):
            return
        if at_once or result.mismatches or len(result.fingerprints) >= MAX_BYTES:
            self.report(result)
        else:
            counted[what] = result

    def flush_request(self, request_id: str) -> None:
        """Report the counts of an ended request."""
        for result in self._counted.pop(request_id, {}).values():
            self.report(result)

    def flush(self) -> None:
        """Report all counts."""
        for request_id in list(self._counted):
            self.flush_request(request_id)
