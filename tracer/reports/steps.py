"""The steps of a history as text: one line each, or one step with its request's account. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from click import style

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.history.history import History
from kvtrail.tracer.history.player import BLANK, NUMBERS, Player, Step, at_ns
from kvtrail.tracer.model import words
from kvtrail.tracer.model.findings import Verdict, clock, day
from kvtrail.tracer.reports.findings import finding_text
from kvtrail.tracer.reports.terminal import plain, wrapped

NAMES = {"epoch": "preemptions", "waited_ns": "waited for KV", "looked_at": "blocks checked"}
"""Display names of numbers that differ from their field names."""


def opening(player: Player, columns: int | None) -> list[str]:
    """The amount of data read, unreadable data with reasons, and the verdicts on the shown requests."""
    shown = player.judged.verdicts if player.following is None else player.following
    of = Counter(player.judged.verdicts[key] for key in shown)
    requests = words.some(sum(of.values()), "request")
    verdicts = f"{requests}: {of[Verdict.DRIFT]} with drift, {of[Verdict.OK]} ok, {of[Verdict.UNKNOWN]} unknown."
    return [line for text in (*_what_was_read(player), verdicts) for line in wrapped(text, columns, rest="  ")]


def lines(player: Player, *, only: Step | None = None, columns: int | None) -> Iterator[str]:
    """Every step as a line, each finding after the step that shows it: text for a pipe, a file, or a pager. With `only`, a
    single step with its request's account."""
    yield "\n".join(opening(player, columns))
    width = max((len(e.request or "") for e in player.events), default=0)
    engines = len({event.engine for event in player.events})
    several_connectors = len({event.connector for event in player.events} - {""}) > 1
    digits = len(str(len(player.events)))
    today = ""
    for step in player.steps() if only is None else (only,):
        event = step.event
        if day(at_ns(event)) != today:
            today = day(at_ns(event))
            yield style(f"\n{today} (UTC)", dim=True)
        if step.gap:
            gap = words.some(step.gap, "event")
            yield style(f"{'':{digits}}  ... {gap} of {plain(event.request or '')} missing here", fg="yellow")
        about = plain(event.request or words.NOTHING)
        where = f"{plain(player.engine_names.get(event.engine, event.engine))}  " if engines > 1 else ""
        by = _recorded_by(event, name_connector=several_connectors)
        what = words.kind(event.kind) + (f" ({by})" if by else "")
        account = "; ".join(_changes(step))
        yield (
            f"{step.number:>{digits}}  {style(clock(at_ns(event)), dim=True)}  {where}{about:<{width}}  "
            f"{style(what, bold=True)}: {_described(event)}" + (style(f"  [{account}]", fg="blue") if account else "")
        )
        indent = digits + 2
        if only is not None:
            yield from (" " * indent + line for line in _account(step))
        yield from (" " * indent + line for line in _findings(step, None if columns is None else columns - indent))


def _what_was_read(player: Player) -> Iterator[str]:
    events = player.events
    begin_ns, end_ns = min(e.start_ns for e in events), max(e.end_ns for e in events)
    engines = len({event.engine for event in events})
    until = clock(end_ns) if day(begin_ns) == day(end_ns) else f"{day(end_ns)} {clock(end_ns)}"
    yield (
        f"{words.some(len(events), 'event')} of {words.some(len(player.requests), 'request')} in"
        f" {words.some(engines, 'engine')}, {day(begin_ns)} {clock(begin_ns)} to {until} UTC."
    )
    if len(player) < len(events):
        yield f"{words.some(len(player), 'step')} of them {'is' if len(player) == 1 else 'are'} shown."
    if missing := player.judged.missing:
        yield f"{words.some(missing, 'event')} missing, by their numbers: what was not recorded cannot be judged."
    yield from left_out(player.history)


def left_out(history: History) -> Iterator[str]:
    """Unreadable data, data of a newer kvtrail, and data of other programs."""
    if history.unreadable:
        file, number, reason = history.unreadable[0]
        count = len(history.unreadable)
        what = "1 line or span" if count == 1 else f"{words.count(count)} lines or spans"
        yield plain(f"Not read: {what}; the first: {f'{file}:{number}' if number else file}: {reason}")
    if history.unknown:
        names = ", ".join(f"{name} ({words.count(number)})" for name, number in history.unknown.items())
        yield plain(f"Unknown to this kvtrail, left out: {names}.")
    if history.foreign:
        yield f"{words.some(len(history.foreign), 'span')} of other services left out."
    if history.repeated:
        yield f"{words.some(history.repeated, 'repeated span')} counted once."


def _described(event: Event) -> str:
    """An event in words, with its blocks and keys, and its error."""
    numbers = event.numbers()
    parts = [words.described(event.kind, numbers)]
    if numbers.get("blocks_ids") is not None:
        parts.append(f"blocks {words.blocks_named(numbers)}")
    if keys := numbers.get("chunk_keys"):
        parts.append(f"keys {words.value(keys)}")
    if event.error is not None:
        parts.append(f"raised {event.error}")
    return plain("; ".join(part for part in parts if part))


def _recorded_by(event: Event, *, name_connector: bool) -> str:
    """The worker that recorded the event, if it was not the scheduler, and with `name_connector` the connector."""
    parts = [f"worker {event.rank}"] if event.role == "worker" else []
    if name_connector and event.connector:
        parts.append(event.connector)
    return plain(", ".join(parts))


def _changes(step: Step) -> list[str]:
    """The step's changes of the account: `computed 48 -> 336`, or `computed 48` if it was unknown before. The error is
    omitted, since the event has it."""
    before, after = step.before or BLANK, step.after or BLANK
    return [
        f"{_name(name)} {_number(after, name)}" if old in (None, BLANK[name]) else
        f"{_name(name)} {_number(before, name)} -> {_number(after, name)}"
        for name, (old, new) in step.changed.items()
        if name != "error" and not _is_redundant(name, new)
    ]  # fmt: skip


def _account(step: Step) -> Iterator[str]:
    """The account after a step, one number per line, with the old value if the step changed it."""
    before, after = step.before or BLANK, step.after or BLANK
    for name in NUMBERS:
        if after[name] != BLANK[name] and not _is_redundant(name, after[name]):
            was = f" (was {_number(before, name)})" if name in step.changed else ""
            yield f"{_name(name)} {_number(after, name)}{was}"


def _is_redundant(name: str, value: Any) -> bool:
    """Whether numbers by rank only repeat the sum, because there is only one rank."""
    return name in ("loaded_by_rank", "stored_by_rank") and len(value) < 2


def _findings(step: Step, columns: int | None) -> list[str]:
    """The findings of a step."""
    texts = [line for finding in step.findings for line in finding_text(finding, columns=columns).split("\n")]
    if step.late:
        texts += wrapped("At the end of the history, because something never came:", columns)
        texts += [line for finding in step.late for line in finding_text(finding, columns=columns).split("\n")]
    return texts


def _number(account: Mapping[str, Any], name: str) -> str:
    """A number of an account."""
    if name == "waited_ns":
        return words.waiting(account[name], account["wait_loads"])
    return plain(words.value(account[name]))


def _name(field: str) -> str:
    return NAMES.get(field, field).replace("_", " ")
