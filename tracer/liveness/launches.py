"""How the launches of engines went, as this tracer knows by what their recorders said, or did not say.

What an engine says of itself is final: a goodbye that names an exception is a death, one that names none is a good end. A
silence is a death if the last that came was a call of the connector that raised, since vLLM catches none of these; otherwise
nobody can tell it from a broken network. A process that ended without a goodbye died if it left requests open: vLLM, asked
to stop, kills its engine's process at once, unless it is given a `--shutdown-timeout`. The recorder on the scheduler's side
speaks for its engine: workers are ended by their engine, well or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from kvtrail.tracer.detect.detector import GRACE_NS, Detector
from kvtrail.tracer.events.semconv import NO_GOODBYE
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.liveness.endings import cause_of, is_lost
from kvtrail.tracer.liveness.recorders import SILENT_NS, Recorders, RecorderState, Status
from kvtrail.tracer.model.launches import FINAL, Cause, Launch, State

SETTLED_NS = GRACE_NS + 5 * 10**9
"""After an end, what was lost is counted once more: by then, events that were missing have come or were given up."""
MOST_LAUNCHES = 20_000

Key = tuple[str, str]
"""A launch: its engine, and what it is called."""


class Launches:
    """The launches that are known.

    Attributes:
        changed: those that are to be written. The caller clears it.
    """

    def __init__(
        self,
        stored: Iterable[Launch],
        heard: Mapping[str, int],
        *,
        at_ns: int,
        on_change: Callable[[Launch | None, Launch], object] = lambda before, now: None,
    ) -> None:
        """`stored` are the launches as they were last written, and `heard` has when their engines were last heard of, Unix
        nanoseconds; it is `at_ns` of the monotonic clock. `on_change` gets each launch that changes, as it was, None if it
        was not known, and as it is."""
        self._on_change = on_change
        self.changed: dict[Key, Launch] = {}
        self._known = {(launch.engine, launch.launch): launch for launch in stored}
        self._heard, self._began_at = heard, at_ns
        self._unsettled: dict[Key, int] = {}
        """Those that have ended a moment ago, and when."""

    def update(self, recorders: Recorders, detector: Detector, *, at_ns: int) -> None:
        """Look how the launches are, at `at_ns` of the monotonic clock."""
        held: dict[Key, list[RecorderState]] = {}
        for recorder in recorders.values():
            held.setdefault((recorder.engine, recorder.launch), []).append(recorder)
        begun_at = {key: min(recorder.began_at for recorder in of_launch) for key, of_launch in held.items()}
        newest: dict[str, int] = {}
        for (engine, _), began_at in begun_at.items():
            newest[engine] = max(newest.get(engine, 0), began_at)
        for (engine, name), of_launch in held.items():
            is_replaced = recorders.is_replaced(engine) or begun_at[engine, name] < newest[engine]
            told = _launch_of(_present(of_launch), is_replaced=is_replaced)
            known = self._known.get((engine, name))
            if known is not None and not _is_another(told, known):
                if (
                    known.state in FINAL
                    and told.state not in FINAL
                    and not any(each.is_scheduler for each in of_launch)
                ):
                    continue  # something of it came late
                told = replace(told, began_ns=min(told.began_ns, known.began_ns))
            self._note(told, _requests_of(engine, of_launch, detector), detector, at_ns=at_ns)
        if at_ns - self._began_at > SILENT_NS:
            for known in [known for key, known in self._known.items() if key not in held]:
                if known.state is State.RUNNING:
                    others = [each for key, of_launch in held.items() if key[0] == known.engine for each in of_launch]
                    its = _requests_of(known.engine, others, detector, but=True)
                    self._note(self._gone(known, detector), its, detector, at_ns=at_ns)

    def _note(self, told: Launch, its: Iterable[Account], detector: Detector, *, at_ns: int) -> None:
        """Note what is told of a launch; `its` are its requests."""
        key = (told.engine, told.launch)
        known = self._known.get(key)
        is_same = known is not None and _said(known) == _said(told)
        if is_same and at_ns - self._unsettled.get(key, at_ns) <= SETTLED_NS:
            return
        if told.ended_ns is not None:
            lost = [each for each in its if is_lost(each)]
            cause = _cause(told, lost, detector)
            if known is not None and known.ended_ns is not None:  # requests that have ended are forgotten after a while
                told = replace(told, lost=max(len(lost), known.lost), cause=cause or known.cause)
            else:
                told = replace(told, lost=len(lost), cause=cause)
            if told.ended_by == NO_GOODBYE and not told.lost:
                told = replace(told, state=State.DRAINED)
        if is_same or told.ended_ns is None:
            self._unsettled.pop(key, None)
        else:
            self._unsettled[key] = at_ns
        if told != known:
            self._on_change(known, told)
            self._known[key] = self.changed[key] = told
            while len(self._known) > MOST_LAUNCHES:
                del self._known[next(iter(self._known))]

    def _gone(self, known: Launch, detector: Detector) -> Launch:
        """A launch that was running before this tracer was started, and of which nothing came since."""
        last_ns = [account.last_ns for account in detector.accounts.values() if account.engine == known.engine]
        ended_ns = max(last_ns, default=self._heard.get(known.engine, known.began_ns))
        return replace(known, state=State.SILENT, ended_ns=ended_ns)


def _present(recorders: Sequence[RecorderState]) -> Sequence[RecorderState]:
    """The recorders of the last launch: an engine that does not name its launches may have been started anew."""
    began_at = max((recorder.began_at for recorder in recorders if recorder.is_scheduler), default=0)
    return [recorder for recorder in recorders if recorder.heard_at >= began_at]


def _is_another(told: Launch, known: Launch) -> bool:
    """Whether this is another launch than the one that had ended, though they have the same name."""
    return told.launch == "" and known.ended_ns is not None and told.began_ns > known.ended_ns


def _launch_of(recorders: Sequence[RecorderState], *, is_replaced: bool) -> Launch:
    """A launch by what its recorders said; `is_replaced` if there is a newer one in its place."""
    speakers = [recorder for recorder in recorders if recorder.is_scheduler] or recorders
    state, ended_by = _end_of(speakers, recorders, is_replaced=is_replaced)
    ended = speakers if state in FINAL else recorders
    return Launch(
        engine=recorders[0].engine,
        launch=recorders[0].launch,
        state=state,
        began_ns=min(recorder.first_ns for recorder in recorders),
        ended_ns=None if state in (State.RUNNING, State.UNSEEN) else max(recorder.last_ns for recorder in ended),
        ended_by=ended_by,
    )


def _end_of(
    speakers: Sequence[RecorderState], recorders: Sequence[RecorderState], *, is_replaced: bool
) -> tuple[State, str | None]:
    """How a launch is, and what ended it."""
    said = next((recorder.ended_by for recorder in speakers if recorder.ended_by is not None), None)
    raised = next((recorder.raised[1] for recorder in recorders if recorder.raised is not None), None)
    if said is not None:
        return State.DIED, raised if raised is not None and said == NO_GOODBYE else said
    if all(recorder.status is Status.CLOSED for recorder in speakers):
        return (State.DRAINED, None) if raised is None else (State.DIED, raised)
    if any(recorder.status is Status.RUNNING for recorder in recorders):
        return (State.RUNNING if any(recorder.gives_signs for recorder in recorders) else State.UNSEEN), None
    if raised is not None:
        return State.DIED, raised
    if is_replaced:
        return State.REPLACED, None
    is_quiet = all(recorder.status in (Status.QUIET, Status.CLOSED) for recorder in recorders)
    return (State.UNSEEN if is_quiet else State.SILENT), None


def _requests_of(
    engine: str, recorders: Iterable[RecorderState], detector: Detector, *, but: bool = False
) -> Iterator[Account]:
    """The requests of an engine that these recorders recorded, or with `but` those of others."""
    names = {recorder.id for recorder in recorders}
    return (
        each for each in detector.accounts.values() if each.engine == engine and (each.recorder in names) is not but
    )


def _said(launch: Launch) -> tuple[object, ...]:
    """What of it follows from what its recorders said."""
    return launch.state in FINAL or launch.state, launch.began_ns, launch.ended_ns, launch.ended_by


def _cause(launch: Launch, lost: Sequence[Account], detector: Detector) -> Cause | None:
    """The finding that a death is put down to."""
    if launch.state is not State.DIED or launch.ended_ns is None:
        return None
    failed = {account.request for account in lost if account.status == "failed"}
    findings = (finding for found in detector.findings.values() for finding in found.values())
    last = cause_of(findings, launch.engine, launch.ended_ns, failed)
    return None if last is None else Cause(id=last.id, rule=last.rule, title=last.title, request=last.request)
