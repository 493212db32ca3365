"""The second stage of the pipeline: judges the events of a request. The detector judges them, its findings are reported,
savings are summed up, and ended requests are forgotten.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from kvtrail.tracer.detect.detector import Detector
from kvtrail.tracer.detect.pairs import RemoteHandoff
from kvtrail.tracer.detect.tracked import Key
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Event, RequestStart
from kvtrail.tracer.liveness.recorders import RecorderState
from kvtrail.tracer.model.findings import Finding, Severity, Unknown, Verdict
from kvtrail.tracer.serve.errors import Where
from kvtrail.tracer.serve.finding_log import FindingLog
from kvtrail.tracer.serve.known_findings import KnownHere
from kvtrail.tracer.serve.metrics.metrics import Metrics
from kvtrail.tracer.serve.receive.receiving import of_this_time
from kvtrail.tracer.serve.receive.sums import Sums
from kvtrail.tracer.store.handoffs import HandoffRow, heard_of, row_of
from kvtrail.tracer.store.sqlite.store import SqliteWriter

SLICE_NS = 50 * 10**6
"""Maximum time for judging events that had waited for missing ones, before requests are processed again."""
logger = logging.getLogger("kvtrail")


class Judge:
    """Judges events, in any order of arrival.

    Attributes:
        detector: the accounts and the findings.
        sums: the sums to be written.
        judged: the number of the last judged span.
        is_behind: whether there are stored spans that are not judged yet: after a start.
        is_recalling: whether accounts are still incomplete: after a start.
        is_closing: whether long tasks should end.
        may_settle: whether all open requests could be read back; if not, the next start tries again.
        dirty: requests with a changed account, to be written.
        changed: findings to be written, by id.
        handoffs: events of hand-offs to be written.
        known: the known findings.
    """

    def __init__(
        self,
        log: SqliteWriter,
        metrics: Metrics,
        lock: threading.RLock,
        highest_numbers: Mapping[str, int],
        *,
        max_requests: int,
        grace_ns: int,
        clock: Callable[[], int],
        known: KnownHere,
        on_recalled: Callable[[Sequence[Event]], None] = lambda events: None,
        finding_log: FindingLog | None = None,
    ) -> None:
        """
        Args:
            log: source of the stored events of a request.
            lock: the lock of the pipeline.
            highest_numbers: the highest number of stored events, by recorder.
            grace_ns: how long to wait for missing events.
            clock: the time in nanoseconds that decides when missing events are given up.
            on_recalled: called with stored events that are read back.
            finding_log: receives each new finding, and each finding that becomes more severe.
        """
        self._log, self._lock, self._clock, self._grace_ns = log, lock, clock, grace_ns
        self._on_recalled, self._finding_log = on_recalled, finding_log
        self._metrics, self._errors = metrics, metrics.internal_errors
        self.judged, self.known = log.judged(), known
        self.is_behind, self.is_closing = True, False
        self.is_recalling, self.may_settle = log.last_number() > 0, True
        judged_before = highest_numbers if self.judged else {}
        self.sums = Sums(judged_before, self._errors)
        self.detector = Detector(
            max_requests=max_requests,
            listener=self.sums.entered,
            on_fact=self.sums.sum_up,
            on_causes=self.sums.explain,
            on_reset=self.sums.online_curve.reset,
            on_handoff=self._keep,
            on_handed_over=self.sums.handoff_ended,
            on_error=self._errors.count,
            came_before=judged_before,
        )
        self.dirty: dict[Key, None] = {}
        self.changed: dict[str, Finding] = {}
        self.handoffs: list[HandoffRow] = []
        self._reported: set[tuple[str, Severity]] = set()
        self._verdicts_before, self._unknown_before = self.detector.verdicts, self.detector.unknown

    def checks(self) -> Counter[tuple[str, Verdict]]:
        """The number of verdicts by rule, without events that were read back after the start."""
        return self.detector.verdicts - self._verdicts_before

    def unknown(self) -> Counter[tuple[str, Unknown]]:
        """The number of undecided judgements by rule and reason, without events that were read back after the start."""
        return self.detector.unknown - self._unknown_before

    def judge(
        self,
        fresh: Sequence[Event],
        again: Sequence[Event] = (),
        contested: Sequence[Event] = (),
        too_far: Sequence[Event] = (),
    ) -> None:
        """Judge events. An event that was received before is passed on only if its request is still in memory; the detector
        then decides. Recorders with `contested` or `too_far` events have an incomplete history."""
        accounts = self.detector.accounts
        again = [event for event in again if (event.engine, event.request) in accounts]
        events = [*fresh, *again, *contested] if again or contested else fresh
        touched = {(event.engine, event.request): None for event in events if event.request is not None}
        if late := [key for key in touched if key not in accounts]:
            begin = {(event.engine, event.request) for event in events if isinstance(event, RequestStart)}
            self.read_back({key for key in late if key not in begin and self._log.holds(*key)})
        self.dirty.update(touched)
        found = self._feed(events)
        if contested or too_far:
            with self._errors.caught(Where.DETECTOR):
                self.detector.doubt((*contested, *too_far))
        self._take_findings(found)

    def ingest_remote(self, those: Iterable[RemoteHandoff]) -> None:
        """Judge another sidecar's events of hand-offs that this sidecar has one side of."""
        with self._errors.caught(Where.DETECTOR, "hand-offs between two sidecars are not judged"):
            fresh, found = self.detector.ingest_remote(those)
            for heard in fresh:
                self._keep(heard)
            self._take_findings(found)

    def settle(self) -> bool:
        """Stop waiting for events that have been missing for too long, and judge the events that waited for them, for at most
        `SLICE_NS`; returns whether more of them wait."""
        with self._errors.caught(Where.TIDY):
            before_ns = self._clock() - self._grace_ns
            self._take_findings(self.detector.settle(before_ns=before_ns, is_enough=self._slice()))
            return self.detector.is_unsettled
        return False

    def _slice(self) -> Callable[[], bool]:
        """A function that returns whether the slice that begins now is over."""
        until_ns = self._clock() + SLICE_NS
        return lambda: self._clock() >= until_ns

    def ends_before(self, before_ns: int) -> bool:
        """Whether rows of requests must be written that ended before then and are about to be forgotten."""
        return not self.dirty.keys().isdisjoint(self.detector.over(before_ns=before_ns))

    def forget(self, *, before_ns: int, unwritten: Collection[Key], gone: Iterable[RecorderState]) -> None:
        """Forget requests that ended before then, except those with unwritten rows. Forget recorders that are gone, and
        abandon their open requests."""
        with self._errors.caught(Where.TIDY):
            if not self.is_recalling and self.detector.forget_finished(before_ns=before_ns, but=unwritten):
                self._reported &= {
                    (each.id, each.severity) for by_id in self.detector.findings.values() for each in by_id.values()
                }
        with self._errors.caught(Where.TIDY):
            if last_ns := {recorder.id: recorder.last_ns for recorder in gone}:
                self.detector.abandon(last_ns, semconv.LOST_CONTACT)
                self.detector.forget_recorders(last_ns)
                self.sums.savings.forget(last_ns)
                self._mark_changed()

    def confirm(self, number: int) -> None:
        """Note that the changed findings and sums are stored, and the spans up to this number."""
        self.sums.savings.facts.clear()
        self.sums.savings.sums.clear()
        self.sums.handed_over.clear()
        self.sums.wasted.clear()
        self.changed.clear()
        self.handoffs.clear()
        if not self.is_behind:
            self.judged = number

    def read_back(self, requests: Collection[Key], *, until: int | None = None) -> None:
        """Feed the stored events of requests to the detector again. Their findings were reported before, and the causes of
        their prompts stay as they are, since the old contents of the caches are unknown now."""
        with self.recalling():
            until = self.judged if until is None else until
            for stored in self._log.events_of(requests, until=until) if requests else ():
                if self.is_closing:
                    return
                self._recall(stored)
            with self._lock:
                for key, entries in self._log.explained(requests).items() if requests else ():
                    if (account := self.detector.accounts.get(key)) is not None:
                        account.recalled = entries

    def recall_handoffs(self) -> None:
        """Enter the events of both sides of the recent hand-offs again; their findings were reported before."""
        rows = self._log.handoffs()
        with self._lock:
            _, found = self.detector.ingest_remote(heard_of(rows))
            self._reported.update((finding.id, finding.severity) for finding in found)

    def recall_all(self, *, after: int) -> None:
        """Feed all stored and judged events after span `after` to the detector again."""
        while after < self.judged and not self.is_closing:
            following = self._log.following(after=after)
            if following is None:
                break
            after, events = following
            self._recall(events)
        with self._lock:
            for key, entries in self._log.explained(self.detector.accounts).items():
                self.detector.accounts[key].recalled = entries

    def end_recall(self) -> None:
        """Note that all open requests are read back: the accounts are complete."""
        self.is_recalling, self.sums.is_recalling = self.is_closing, False
        self._verdicts_before, self._unknown_before = self.detector.verdicts, self.detector.unknown

    @contextmanager
    def recalling(self) -> Iterator[None]:
        """Count exceptions raised in the block. The log stays unsettled at its old position, so that the next start makes the
        rows."""
        try:
            yield
        except Exception as error:
            self.may_settle = False
            self._errors.count(Where.RECALL, error, "requests that were open could not be restored")

    def _recall(self, stored: Iterable[Event]) -> None:
        """Feed events whose findings were reported and whose sums are stored."""
        events = of_this_time(stored)
        with self._lock:
            self._on_recalled(events)
            self.sums.expect_again(events)
            self._reported.update((finding.id, finding.severity) for finding in self._feed(events))

    def _keep(self, heard: RemoteHandoff) -> None:
        with self._errors.caught(Where.STORE, "an event of a hand-off is not stored"):
            self.handoffs.append(row_of(heard))

    def _feed(self, events: Sequence[Event]) -> list[Finding]:
        """Pass events to the detector; returns findings that are new or recurred. An event that makes the detector fail
        counts as lost."""
        try:
            return self.detector.feed(events, at_ns=self._clock(), is_enough=self._slice())
        except Exception as error:
            self._errors.count(Where.DETECTOR, error)
        findings: dict[str, Finding] = {}
        for event in events:  # one by one: events that it has entered are not entered again
            try:
                self.detector.feed([event], at_ns=self._clock())
            except Exception as error:
                self._errors.count(Where.DETECTOR, error, f"span {event.span_id} is not judged")
                account = self.detector.accounts.get((event.engine, event.request or ""))
                if account is not None:
                    account.mark_gap(Unknown.RULE)
            findings |= self.detector.findings.get((event.engine, event.request or ""), {})
        return list(findings.values())

    def _take_findings(self, findings: Sequence[Finding]) -> None:
        """Count and log new findings, and mark the detector's changes for the next commit."""
        for finding in findings:
            if (finding.id, finding.severity) not in self._reported:  # new, or more severe than before
                self._reported.add((finding.id, finding.severity))
                known = self.known.has(finding)
                self._metrics.count_finding(finding, known=known)
                if self._finding_log is not None:
                    with self._errors.caught(Where.FINDING_LOG, "a finding is not exported"):
                        self._finding_log.write(finding, known=known)
                about = {"rule": finding.rule, "request": finding.request, "engine": finding.engine}
                logger.warning("%s: %s", finding.rule, finding.explanation, extra=about)
            self.changed[finding.id] = finding
            self.dirty[finding.engine, finding.request] = None  # another request's event may have revealed it
        accounts = self.detector.accounts  # looked up one by one: the difference to its keys passes through all of them
        forgotten = {key for each in findings if (key := (each.engine, each.request)) not in accounts}
        self.read_back({key for key in forgotten if self._log.holds(*key)})  # so that their rows show it
        self._mark_changed()

    def _mark_changed(self) -> None:
        self.dirty.update(dict.fromkeys(self.detector.changed))
        self.detector.changed.clear()
