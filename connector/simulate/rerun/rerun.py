"""Re-run: the recorded calls again, against a connector class, and what it answers this time.

As Temporal replays a workflow's history against its code, and reports where they first diverge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvtrail.connector.known.environment import Environment
from kvtrail.connector.known.probe import probe_for
from kvtrail.connector.simulate.prefixes import Prefixes
from kvtrail.connector.simulate.rerun import environment
from kvtrail.connector.simulate.rerun.calls import RecordedCalls, recorded_calls
from kvtrail.connector.simulate.rerun.outcome import Compared, Meaning, Outcome, Rerun
from kvtrail.connector.simulate.rerun.runner import Made, Runner
from kvtrail.tracer.events.events import Event
from kvtrail.tracer.history.history import History
from kvtrail.tracer.history.judging import judge
from kvtrail.tracer.history.numbering import numbered, streams
from kvtrail.tracer.model.words import some

Broken = dict[str, dict[str, str]]
"""The rules that each event broke, by its span id, with their explanations."""


def rerun(
    history: History,
    *,
    against: str,
    config: Mapping[str, Any] | None = None,
    request: str | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Rerun:
    """Make the recorded calls again on the scheduler's side of a connector, and compare each answer. No engine, worker or GPU
    is needed, and none is started.

    Args:
        against: a connector by a name that vLLM knows, or `module:Class`.
        config: its `kv_connector_extra_config`, which overrides what was recorded.
        request: report only what concerns this request; all calls are made.
        progress: called with how many calls have been made, and of how many.

    Raises:
        Unusable: the history has no calls, or the connector cannot be made here; the text says what is missing.
    """
    recorded = recorded_calls(history, request=request)
    cls = environment.resolve(against)
    connector, around, block_size = environment.make(cls, recorded, config=config)
    prefixes = Prefixes(recorded.requests(), block_size=block_size, chunk_size=recorded.chunk_size)
    if around.by_tokens and not prefixes.known:
        around.unsure = (
            around.unsure or "which requests share a prefix is guessed, so its store may have held other tokens"
        )
    runner = Runner(recorded, prefixes, around, connector, probe_for(cls))
    try:
        runner.run(progress)
    finally:
        connector.shutdown()
    then, now = _broken_rules(history.events), _broken_rules(_rewritten(history, recorded, runner))
    calls = [_with_meaning(made, then, now) for made in runner.made if _concerns(made, request)]
    return Rerun(
        against=against,
        connector=recorded.connector,
        engine=recorded.engine,
        calls=tuple(calls),
        died_at=runner.died_at,
        notes=tuple(_notes(recorded, around, prefixes)),
    )


def _rewritten(history: History, recorded: RecordedCalls, runner: Runner) -> list[Event]:
    """The history as it would be recorded now."""
    now, rewritten = [], Rewritten()
    for event in history.events:
        instead = runner.replaced.get(event.span_id, [event])
        now += rewritten.instead(event, instead) if event.recorder == recorded.recorder else instead
    return now


def _broken_rules(events: Sequence[Event]) -> Broken:
    judged = judge(events)
    broken: Broken = {}
    for index, findings in (*judged.found.items(), *judged.again.items()):
        rules = broken.setdefault(events[index].span_id, {})
        rules.update((finding.rule, finding.explanation) for finding in findings)
    return broken


class Rewritten:
    """Numbers the events of a history in which some were left out and some put in, as a recorder would. The gaps of the
    recording stay."""

    def __init__(self) -> None:
        self._recorded: dict[Hashable, int] = {}
        self._given: Counter[Hashable] = Counter()

    def instead(self, recorded: Event, events: Iterable[Event]) -> list[Event]:
        """The events that replace a recorded one, numbered; an empty list leaves it out."""
        for stream, number in streams(recorded):
            self._given[stream] += max(0, number - self._recorded.get(stream, -1) - 1)
            self._recorded[stream] = number
        return [self._numbered(event) for event in events]

    def _numbered(self, event: Event) -> Event:
        numbers = {stream: self._given[stream] for stream, _ in streams(event)}
        self._given.update(numbers.keys())
        return numbered(event, numbers)


def _with_meaning(made: Made, then: Broken, now: Broken) -> Compared:
    compared = made.compared
    was_broken, is_broken = (
        {rule: text for event in events for rule, text in broken.get(event.span_id, {}).items()}
        for broken, events in ((then, made.recorded), (now, made.answered))
    )
    if compared.outcome is Outcome.NOT_COMPARABLE:
        is_broken = {}  # in a history that may never have happened
    meaning = None
    if compared.outcome is Outcome.DIFFERENT:
        was_bad, is_bad = (
            bool(broken) or "error" in answer
            for broken, answer in ((was_broken, compared.recorded), (is_broken, compared.answered))
        )
        meaning = Meaning.OTHER if was_bad == is_bad else Meaning.FIX if was_bad else Meaning.NEW_FAULT
    explanations = is_broken if meaning is Meaning.NEW_FAULT else was_broken
    return replace(
        compared,
        meaning=meaning,
        recorded_breaks=tuple(sorted(was_broken)),
        breaks=tuple(sorted(is_broken)),
        explanation=" ".join(explanations[rule] for rule in sorted(explanations)),
    )


def _concerns(made: Made, request: str | None) -> bool:
    if request is None or made.compared.request == request:
        return True
    return any(event.request in (request, None) for event in (*made.recorded, *made.answered))


def _notes(recorded: RecordedCalls, around: Environment, prefixes: Prefixes) -> list[str]:
    notes = list(around.notes)
    if around.unsure:
        notes.append(around.unsure)
    if around.by_tokens and not prefixes.known:
        notes.append(
            "neither hashes of blocks nor keys of chunks are recorded: which requests share a prefix is guessed"
        )
    if recorded.lost_from is not None:
        notes.append(f"events are missing from the recorder's number {recorded.lost_from} on")
    if lost := recorded.request_lost_from:
        notes.append(f"events of {some(len(lost), 'request')} are missing: {', '.join(lost)}")
    return notes
