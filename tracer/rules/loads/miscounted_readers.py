from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvtrail.tracer.events.events import Read, Sent, Xfer, XferOp, XferState
from kvtrail.tracer.events.patience import of_connector
from kvtrail.tracer.ledger.account import Account, Evidence
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Unknown
from kvtrail.tracer.rules.rule import RequestRule

MAX_REPORTS = 256
"""Maximum number of remembered reports of readers, and of reads, of one request."""


@dataclass(slots=True)
class Readers:
    """The reads for a request, and the readers of its blocks.

    Attributes:
        reports: the reports from readers of the request's blocks, in the order of arrival.
        reading: the reads of another engine's blocks that its workers have begun.
    """

    reports: list[Read] = field(default_factory=list)
    reading: list[Xfer] = field(default_factory=list)

    def _enter_read(self, event: Read, account: Account) -> None:
        if len(self.reports) < MAX_REPORTS:
            self.reports.append(event)

    def _enter_xfer(self, event: Xfer, account: Account) -> None:
        begins = event.xfer_op == XferOp.READ and event.xfer_state == XferState.POSTED
        if begins and len(self.reading) < MAX_REPORTS:
            self.reading.append(event)


class MiscountedReaders(RequestRule[Sent | Xfer]):
    State = Readers
    needs_history = False

    def judge(self, event: Sent | Xfer, account: Account) -> Judgement:
        readers: Readers = account.states[Readers]
        if isinstance(event, Xfer):
            return _judge_reading(event, readers.reading)
        evidence, reports = account.evidence, readers.reports
        if not reports or evidence.sent is not None or len(reports) == MAX_REPORTS:
            return None
        by_rank: dict[tuple[str, int], list[Read]] = defaultdict(list)
        for read in reports:
            if not read.notifications_expected:
                return Unknown.PROBE
            by_rank[read.recorder, read.rank].append(read)
        if all(read.notifications_expected == 1 for read in reports):
            return OK
        if any(read.recorder != event.recorder for read in reports):
            return Unknown.ORDER
        if evidence.freed is not None:
            return None if evidence.freed.lease_expired else Unknown.ORDER
        if account.missing is not None:
            return account.missing
        lease_ns = _lease_ns(evidence)
        if lease_ns is None or event.end_ns >= lease_ns:
            return Unknown.VERSION  # some do not say that a lease has run out
        drifts = [_too_few(reads, event) for reads in by_rank.values()]
        return tuple(each for each in drifts if each is not None) or OK


def _judge_reading(event: Xfer, before: Sequence[Xfer]) -> Judgement:
    """Judge the first read of a rank of the decoding engine."""
    if event.xfer_op != XferOp.READ or event.xfer_state != XferState.POSTED:
        return None
    if not event.notifications_expected or event.peer is None or event.peer_rank is None:
        return None
    place = event.peer, event.peer_rank
    same = [each for each in before if (each.peer, each.peer_rank) == place]
    readers = {each.rank for each in same} | {event.rank}
    expected = max(each.notifications_expected or 0 for each in (*same, event))
    if len(readers) <= expected or any(each.rank == event.rank for each in same):
        return OK
    numbers = {"readers": len(readers), "expected": expected, "peer": event.peer, "peer_rank": event.peer_rank}
    return Drift(numbers, [same[-1], event])


def _too_few(reads: Sequence[Read], event: Sent) -> Drift | None:
    """Judge the number of reports that one rank has received when its blocks are freed. Unnamed readers are assumed to be
    different, and if reports disagree, the smallest expected number counts."""
    by_peer = Counter(read.peer for read in reads)
    readers = len(by_peer) - (None in by_peer) + by_peer[None]
    expected = min(read.notifications_expected or 0 for read in reads)
    if readers >= expected:
        return None
    again = next((peer for peer, count in by_peer.items() if peer is not None and count > 1), None)
    shown = reads[-1:] if again is None else [read for read in reads if read.peer == again][:2]
    numbers = {"readers": readers, "expected": expected, "reports": len(reads), "rank": reads[0].rank}
    return Drift(numbers, [*shown, event], connector=reads[0].connector)


def _lease_ns(evidence: Evidence) -> int | None:
    """The time until which the blocks are kept for readers, by the clock of the engine that keeps them; None if unknown."""
    end = evidence.ended
    if end is None:
        return None
    lease_s = end.lease_s or of_connector(end.connector, end.patience).keep_s
    ends = [end.end_ns + int(lease_s * 10**9)] if lease_s else []
    if (last := evidence.lease) is not None and last.lease_s:
        ends.append(last.end_ns + last.lease_s * 10**9)
    return max(ends, default=None)
