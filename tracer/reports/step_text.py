"""Steps and accounts in words: what screens and lines are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.model import words
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.findings import Verdict, clock
from kvtrail.tracer.replay.player import Player
from kvtrail.tracer.replay.step import NUMBERS, Step
from kvtrail.tracer.reports.terminal import plain

ALWAYS = ("status", "epoch", "total", "computed", "matched", "returned", "allocated", "scheduled", "loaded", "stored")
"""Of an account, what is shown even while nothing is known of it: the screen must not jump from step to step."""
_BLANK = Account("", "").as_dict()


def day(at_ns: int) -> str:
    """The day on which a moment lies, in UTC: 2025-12-03."""
    return f"{datetime.fromtimestamp(at_ns / 1e9, UTC):%Y-%m-%d}"


def said(event: Event) -> str:
    """What an event says, with its blocks and keys, and the error with which it ended."""
    numbers = event.numbers()
    parts = [words.said(event.kind, numbers)]
    if (ids := numbers.get("blocks_ids")) is not None:
        parts.append(f"blocks {words.blocks(ids) or 'none'}")
    if keys := numbers.get("chunk_keys"):
        parts.append(f"keys {value(keys)}")
    if event.error is not None:
        parts.append(f"raised {event.error}")
    return plain("; ".join(part for part in parts if part))


def by(event: Event, *, several: bool) -> str:
    """Who told it, where that is not the scheduler's side of the one connector: worker 1; with `several`, which
    connector."""
    parts = [f"worker {event.rank}"] if event.role == "worker" else []
    if several and event.connector:
        parts.append(event.connector)
    return plain(", ".join(parts))


def several_connectors(player: Player) -> bool:
    """Whether connectors must be told apart."""
    return len({event.connector for event in player.events} - {""}) > 1


def changes(step: Step) -> list[str]:
    """What the step changed of the account: computed 48 -> 336; a number that was not known before stands alone. An error
    is left out: the event says it already."""
    return [
        f"{_name(name)} {value(after)}" if before in (None, _BLANK[name]) else
        f"{_name(name)} {value(before)} -> {value(after)}"
        for name, (before, after) in step.changed.items()
        if name != "error" and not _said_already(name, after)
    ]  # fmt: skip


def account(step: Step) -> list[tuple[str, str, str | None]]:
    """The account after the step: name, value, and the value before where that was another."""
    if step.after is None:
        return []
    changed = step.changed
    return [
        (_name(name), value(step.after[name]), value(changed[name][0]) if name in changed else None)
        for name in NUMBERS
        if name in ALWAYS
        or ((name in changed or step.after[name] != _BLANK[name]) and not _said_already(name, step.after[name]))
    ]


def value(of: Any) -> str:
    """A value of an account or an event."""
    match of:
        case None:
            return words.NOTHING
        case bool():
            return "yes" if of else "no"
        case int():
            return words.count(of)
        case Mapping():
            return (
                ", ".join(f"rank {rank}: {words.count(number)}" for rank, number in sorted(of.items())) or words.NOTHING
            )
        case list() | tuple():
            shown = ", ".join(f"{x[0]} to {x[1]}" if isinstance(x, tuple) else str(x) for x in of[: words.MOST_RUNS])
            rest = len(of) - words.MOST_RUNS
            return plain(shown) + (f" and {words.count(rest)} more" if rest > 0 else "") or words.NOTHING
        case _:
            return plain(str(of))


def read(player: Player) -> list[str]:
    """What was read, in sentences: how much, from when to when, and what was not read and why."""
    history, events = player.history, player.events
    begin, end = player.begin_ns, max(e.end_ns for e in events)
    engines = len({event.engine for event in events})
    until = clock(end) if day(begin) == day(end) else f"{day(end)} {clock(end)}"
    told = [
        f"{words.some(len(events), 'event')} of {words.some(len(player.stories), 'request')} in"
        f" {words.some(engines, 'engine')}, {day(begin)} {clock(begin)} to {until} UTC."
    ]
    if len(player) < len(events):
        told.append(f"{words.some(len(player), 'step')} of them {'is' if len(player) == 1 else 'are'} shown.")
    if missing := player.judged.missing:
        told.append(f"{words.some(missing, 'event')} missing, by the numbers: what was not seen cannot be judged.")
    if history.unreadable:
        file, number, reason = history.unreadable[0]
        where = f"{file}:{number}" if number else file
        what = (
            "1 line or span"
            if len(history.unreadable) == 1
            else f"{words.count(len(history.unreadable))} lines or spans"
        )
        told.append(f"Not read: {what}; the first: {where}: {reason}")
    if history.unknown:
        names = ", ".join(f"{name} ({words.count(number)})" for name, number in history.unknown.items())
        told.append(f"Not known to this kvtrail, and left out: {names}.")
    if history.foreign:
        told.append(f"{words.some(len(history.foreign), 'span')} of other services left out.")
    if history.repeated:
        told.append(f"{words.some(history.repeated, 'span')} that stood there twice counted once.")
    return [plain(sentence) for sentence in told]


def verdicts(player: Player) -> str:
    """How the requests that are shown stand at the end of the history."""
    shown = player.judged.verdicts if player.following is None else player.following
    of = Counter(player.judged.verdicts[key] for key in shown)
    requests = words.some(sum(of.values()), "request")
    return f"{requests}: {of[Verdict.DRIFT]} with drift, {of[Verdict.OK]} ok, {of[Verdict.UNKNOWN]} unknown."


def _said_already(name: str, value: Any) -> bool:
    """Of one rank alone, the sum over the ranks says it all."""
    return name in ("loaded_by_rank", "stored_by_rank") and len(value) < 2


def _name(field: str) -> str:
    return field.replace("_", " ")
