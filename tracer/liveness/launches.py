"""Tracks the launches of engines by their recorders' reports, or the lack of reports. `engine.py` has the states and their
evidence. The recorder on the scheduler's side represents its engine, since the engine ends its workers in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.liveness.deaths import cause_of
from kvtrail.tracer.liveness.engine import (
    CONTACT_NS,
    FINAL,
    CausingFinding,
    EngineState,
    Evidence,
    Launch,
    supersedes,
    transition,
)
from kvtrail.tracer.liveness.recorders import Contact, Recorders, RecorderState
from kvtrail.tracer.liveness.request_outcome import has_failed, is_lost
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.model.grouping import by_key

SETTLED_NS = 15 * 10**9
"""Time after an end at which lost requests are counted again: by then, missing events have arrived or were given up."""
MAX_LAUNCHES = 20_000

Key = tuple[str, str]
"""A launch: its engine and its name."""
Change = tuple[Launch | None, Launch]
"""A launch before the change (None if it was unknown) and after it."""
Findings = Mapping[Any, Mapping[str, Finding]]
"""Findings by request, and then by id."""


@dataclass
class _Seen:
    """The state for one update, by engine: many engines may end in one second. `changes` are the changes that it makes."""

    recorders: Sequence[RecorderState]
    accounts: Iterable[Account]
    every_finding: Findings
    at_ns: int
    changes: list[Change] = field(default_factory=list)

    @cached_property
    def requests(self) -> Mapping[str, Sequence[Account]]:
        """The requests in memory."""
        return by_key(self.accounts, lambda each: each.engine)

    @cached_property
    def findings(self) -> Mapping[str, Sequence[Finding]]:
        """The findings."""
        every = (finding for found in self.every_finding.values() for finding in found.values())
        return by_key(every, lambda each: each.engine)


class Launches:
    """The known launches.

    Attributes:
        changed: launches to be written. The caller clears it.
    """

    def __init__(self, stored: Iterable[Launch], heard: Mapping[str, int], *, at_ns: int) -> None:
        """`stored` are the launches as last written, and `heard` the times at which their engines last reported, in Unix
        nanoseconds; the monotonic clock is at `at_ns`."""
        self.changed: dict[Key, Launch] = {}
        self._known: BoundedDict[Key, Launch] = BoundedDict(MAX_LAUNCHES)
        self._known.update({(launch.engine, launch.launch): launch for launch in stored})
        self._heard, self._began_at = heard, at_ns
        self._unsettled: dict[Key, int] = {}
        """Launches that have just ended, and when."""

    def known(self) -> list[Launch]:
        """All known launches."""
        return list(self._known.values())

    def update(
        self, recorders: Recorders, accounts: Iterable[Account], findings: Findings, *, at_ns: int
    ) -> Sequence[Change]:
        """Update the launches at `at_ns` of the monotonic clock; returns the changes."""
        seen = _Seen(recorders.values(), accounts, findings, at_ns)
        by_launch = by_key(seen.recorders, lambda each: (each.engine, each.launch))
        begun_at = {key: min(recorder.began_at for recorder in some) for key, some in by_launch.items()}
        newest: dict[str, int] = {}
        for (engine, _), began_at in begun_at.items():
            newest[engine] = max(newest.get(engine, 0), began_at)
        for key, its_recorders in by_launch.items():
            is_replaced = recorders.is_replaced(key[0]) or begun_at[key] < newest[key[0]]
            launch, evidence = _observed(_present(its_recorders), is_replaced=is_replaced)
            known = self._known.get(key)
            if known is not None and not _is_another(launch, known):
                from_scheduler = any(each.is_scheduler for each in its_recorders)
                if not supersedes(launch.state, known.state, from_scheduler=from_scheduler):
                    continue  # a late event of it arrived
                launch = replace(
                    launch,
                    began_ns=min(launch.began_ns, known.began_ns),
                    settings={**known.settings, **launch.settings},
                )
            self._enter(launch, evidence, its_recorders, seen)
        if at_ns - self._began_at > CONTACT_NS:
            for known in [known for key, known in self._known.items() if key not in by_launch]:
                if known.state is EngineState.RUNNING:
                    launch = self._not_heard_since_start(known, seen)
                    others = [each for each in seen.recorders if each.engine == known.engine]
                    self._enter(launch, Evidence(), others, seen, but=True)
        return seen.changes

    def _enter(
        self,
        launch: Launch,
        evidence: Evidence,
        recorders: Sequence[RecorderState],
        seen: _Seen,
        *,
        but: bool = False,
    ) -> None:
        """Enter an observed launch; its requests are the engine's requests that these recorders recorded or, with `but`, all
        others."""
        at_ns = seen.at_ns
        key = (launch.engine, launch.launch)
        known = self._known.get(key)
        is_same = known is not None and _reported(known) == _reported(launch)
        if is_same and at_ns - self._unsettled.get(key, at_ns) <= SETTLED_NS:
            return
        if launch.ended_ns is not None:
            names = {recorder.id for recorder in recorders}
            requests = (each for each in seen.requests.get(launch.engine, ()) if (each.recorder in names) is not but)
            lost = [each for each in requests if is_lost(each)]
            cause = _cause(launch, lost, seen)
            if known is not None and known.ended_ns is not None:  # requests that have ended are forgotten after a while
                launch = replace(launch, lost=max(len(lost), known.lost), cause=cause or known.cause)
            else:
                launch = replace(launch, lost=len(lost), cause=cause)
            launch = replace(launch, state=transition(replace(evidence, lost=launch.lost)).state)
        if is_same or launch.ended_ns is None:
            self._unsettled.pop(key, None)
        else:
            self._unsettled[key] = at_ns
        if launch != known:
            seen.changes.append((known, launch))
            self._known[key] = self.changed[key] = launch

    def _not_heard_since_start(self, known: Launch, seen: _Seen) -> Launch:
        """A launch that was running before this sidecar started, and has sent nothing since."""
        last_ns = [account.last_ns for account in seen.requests.get(known.engine, ())]
        ended_ns = max(last_ns, default=self._heard.get(known.engine, known.began_ns))
        return replace(known, state=EngineState.LOST_CONTACT, ended_ns=ended_ns)


def _present(recorders: Sequence[RecorderState]) -> Sequence[RecorderState]:
    """The recorders of the last launch: an engine that does not name its launches may have been restarted."""
    began_at = max((recorder.began_at for recorder in recorders if recorder.is_scheduler), default=0)
    return [recorder for recorder in recorders if recorder.heard_at >= began_at]


def _is_another(launch: Launch, known: Launch) -> bool:
    """Whether this is a different launch than the ended one with the same name."""
    return launch.launch == "" and known.ended_ns is not None and launch.began_ns > known.ended_ns


def _observed(recorders: Sequence[RecorderState], *, is_replaced: bool) -> tuple[Launch, Evidence]:
    """A launch from its recorders' reports; `is_replaced` if a newer one replaced it."""
    speakers = [recorder for recorder in recorders if recorder.is_scheduler] or recorders
    evidence = Evidence(
        is_closed=all(recorder.contact is Contact.CLOSED for recorder in speakers),
        ended_by=next((recorder.ended_by for recorder in speakers if recorder.ended_by is not None), None),
        raised=next((recorder.raised[1] for recorder in recorders if recorder.raised is not None), None),
        reports=any(recorder.contact is Contact.RUNNING for recorder in recorders),
        sends_heartbeats=any(recorder.gives_signs for recorder in recorders),
        is_replaced=is_replaced,
        heartbeats_due=any(recorder.contact in (Contact.LOST, Contact.TERMINATED) for recorder in recorders),
    )
    state = transition(evidence).state
    last = speakers if state in FINAL else recorders
    goes_on = state in (EngineState.RUNNING, EngineState.NOT_OBSERVED)
    launch = Launch(
        engine=recorders[0].engine,
        launch=recorders[0].launch,
        state=state,
        began_ns=min(recorder.first_ns for recorder in recorders),
        ended_ns=None if goes_on else max(recorder.last_ns for recorder in last),
        ended_by=evidence.exception if state in FINAL else None,
        settings={name: value for each in (*recorders, *speakers) for name, value in each.launched_with.items()},
    )
    return launch, evidence


def _reported(launch: Launch) -> tuple[object, ...]:
    """The evidence from its recorders' reports."""
    return launch.state in FINAL or launch.state, launch.began_ns, launch.ended_ns, launch.ended_by


def _cause(launch: Launch, lost: Sequence[Account], seen: _Seen) -> CausingFinding | None:
    """The finding that a death is attributed to."""
    if launch.state is not EngineState.DIED or launch.ended_ns is None:
        return None
    failed = {account.request for account in lost if has_failed(account.status)}
    last = cause_of(seen.findings.get(launch.engine, ()), launch.engine, launch.ended_ns, failed)
    if last is None:
        return None
    return CausingFinding(id=last.id, rule=last.rule, title=last.title, request=last.request)
