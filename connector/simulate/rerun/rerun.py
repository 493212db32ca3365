"""Run a recorded history again, against a connector class: the same calls, and what it answers this time.

As Temporal replays a workflow's history against its code, and reports where they first diverge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kvtrail.connector.known.environment import Environment
from kvtrail.connector.known.probe import probe_for
from kvtrail.connector.simulate.rerun import environment
from kvtrail.connector.simulate.rerun.calls import Conversation, conversation
from kvtrail.connector.simulate.rerun.judge import Judge, Retold
from kvtrail.connector.simulate.rerun.outcome import Compared, Meaning, Outcome, Rerun
from kvtrail.connector.simulate.rerun.prefixes import Prefixes
from kvtrail.connector.simulate.rerun.runner import Made, Runner
from kvtrail.connector.simulate.rerun.stand_ins import CacheManager, Requests
from kvtrail.tracer.replay.history import History


def rerun(
    history: History,
    *,
    against: str,
    config: Mapping[str, Any] | None = None,
    request: str | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Rerun:
    """Make the recorded calls again on the scheduler's side of a connector, and compare each answer.

    `against` is a connector by a name that vLLM knows, or `module:Class`; `config` its `kv_connector_extra_config`, which
    goes before what was recorded. With `request`, only what concerns that request is told; all calls are made. No engine, no
    worker and no GPU is needed, and none is started. `progress` hears how many calls have been made, and of how many.

    Raises:
        Unusable: the history has no calls, or the connector cannot be made here; the text says what is missing.
    """
    recorded = conversation(history, request=request)
    cls = environment.resolve(against)
    connector, around, block_size = environment.make(cls, recorded, config=config)
    prefixes = Prefixes(recorded.calls, block_size=block_size, chunk_size=recorded.chunk_size)
    requests = Requests(prefixes, one_process=recorded.one_process)
    connector.bind_kv_cache_manager(CacheManager(requests))
    if around.by_tokens and not prefixes.known:
        around.unsure = (
            around.unsure or "which requests share a prefix is guessed, so its store may have held other tokens"
        )
    runner = Runner(recorded, requests, around, connector, probe_for(cls))
    try:
        runner.run(progress)
    finally:
        connector.shutdown()
    then, now = _judged(history, recorded, runner)
    calls = [_with_meaning(made, then, now) for made in runner.made if _concerns(made, request)]
    return Rerun(
        against=against,
        connector=recorded.connector,
        engine=recorded.engine,
        calls=tuple(calls),
        died_at=runner.died_at,
        notes=tuple(_notes(recorded, around, prefixes)),
    )


def _judged(history: History, recorded: Conversation, runner: Runner) -> tuple[Judge, Judge]:
    """The rules over the history as it was recorded, and as it would be recorded now."""
    then, now, retold = Judge(), Judge(), Retold()
    for event in history.events:
        then.hear(event)
        told = runner.told.get(event.span_id, [event])
        for new in retold.instead(event, told) if event.recorder == recorded.recorder else told:
            now.hear(new)
    then.close()
    now.close()
    return then, now


def _with_meaning(made: Made, then: Judge, now: Judge) -> Compared:
    compared = made.compared
    was_broken, is_broken = then.broken(made.recorded), now.broken(made.answered)
    if compared.outcome is Outcome.NOT_COMPARABLE:
        is_broken = {}  # it may stand in a history that never was
    meaning = None
    if compared.outcome is Outcome.DIFFERENT:
        was_bad, is_bad = (
            bool(broken) or "error" in answer
            for broken, answer in ((was_broken, compared.recorded), (is_broken, compared.answered))
        )
        meaning = Meaning.OTHER if was_bad == is_bad else Meaning.FIX if was_bad else Meaning.NEW_FAULT
    words = is_broken if meaning is Meaning.NEW_FAULT else was_broken
    return replace(
        compared,
        meaning=meaning,
        recorded_breaks=tuple(sorted(was_broken)),
        breaks=tuple(sorted(is_broken)),
        explanation=" ".join(words[rule] for rule in sorted(words)),
    )


def _concerns(made: Made, request: str | None) -> bool:
    if request is None or made.compared.request == request:
        return True
    return any(event.request in (request, None) for event in (*made.recorded, *made.answered))


def _notes(recorded: Conversation, around: Environment, prefixes: Prefixes) -> list[str]:
    notes = list(around.notes)
    if around.unsure:
        notes.append(around.unsure)
    if around.by_tokens and not prefixes.known:
        notes.append(
            "neither hashes of blocks nor keys of chunks are recorded: which requests share a prefix is guessed"
        )
    if recorded.lost_from is not None:
        notes.append(f"events are missing from the recorder's number {recorded.lost_from} on")
    if recorded.request_lost_from:
        notes.append(
            f"of {len(recorded.request_lost_from)} requests events are missing: {', '.join(recorded.request_lost_from)}"
        )
    return notes
