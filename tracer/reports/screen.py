"""A step of a history as text: a full screen of it, or one line. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from click import style, unstyle

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.history.history import History
from kvtrail.tracer.history.player import NUMBERS, Player, Step, at_ns
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model import words
from kvtrail.tracer.model.findings import Verdict, clock, day
from kvtrail.tracer.reports.findings import finding_text
from kvtrail.tracer.reports.terminal import plain, wrapped

KEYS = (
    ("n, space, right, down", "next step"),
    ("p, left, up", "previous step"),
    ("f, F", "next finding, previous finding"),
    ("r", "go to a request"),
    ("o", "only this request, or all again"),
    ("g", "go to a step by its number"),
    ("Home, End", "first step, last step"),
    ("e", "everything about this step, if it does not fit"),
    ("?", "this page"),
    ("q", "quit"),
)
SHORT_KEYS = "n next  p back  f finding  r request  o only  g step  ? help  q quit"
LINE_KEYS = "Enter go there  Esc stay here"
PAGE_KEYS = "up, down scroll  Esc back  q quit"
SIDE_BY_SIDE = 108
"""Columns from which on the account is drawn beside the events."""
ACCOUNT = 34
"""Columns of the account where it is drawn beside the events."""
WIDE = 150
"""Columns from which on the list of steps has the whole height, and the step stands beside it."""
LEAST_LISTED = 4
"""The list of steps has at least one line in this many, however long the step's text is."""
LONGEST_ID = 28
"""Columns of a request's id in the list of steps."""
ALWAYS = ("status", "epoch", "total", "computed", "matched", "returned", "allocated", "scheduled", "loaded", "stored")
"""Numbers of an account that are shown even while unknown, so that the screen does not jump from step to step."""
NAMES = {"epoch": "preemptions", "waited_ns": "waited for KV", "looked_at": "blocks checked"}
"""Numbers with other names on the pages than those of their fields."""
_BLANK = Account("", "").as_dict()
_GAP = 2


def opening(player: Player, columns: int | None) -> list[str]:
    """What was read, what was not and why, and the verdicts on the requests shown."""
    shown = player.judged.verdicts if player.following is None else player.following
    of = Counter(player.judged.verdicts[key] for key in shown)
    requests = words.some(sum(of.values()), "request")
    verdicts = f"{requests}: {of[Verdict.DRIFT]} with drift, {of[Verdict.OK]} ok, {of[Verdict.UNKNOWN]} unknown."
    return [line for text in (*_what_was_read(player), verdicts) for line in wrapped(text, columns, rest="  ")]


def help_page(player: Player, columns: int) -> list[str]:
    """What was read, and the keys."""
    width = max(len(keys) for keys, _ in KEYS)
    lines = [style("kvtrail replay", bold=True), "", *opening(player, columns), ""]
    for keys, what in KEYS:
        lines += wrapped(what, columns, first=f"  {keys:<{width}}  ", rest=" " * (width + 4))
    return lines


def moment(player: Player, *, columns: int, rows: int, message: str = "", keys: str = SHORT_KEYS) -> list[str]:
    """The step under the cursor as a screen of `rows` lines: the steps around it, what it says, its findings, and the account
    of its request. Lines that do not fit are counted. Below it stand the lines of a message, and the keys."""
    step = player.here()
    shown = [line for text in message.splitlines() for line in wrapped(plain(text), columns)]
    foot = [*(style(line, bold=True) for line in shown[: rows // 3]), style(_cut(keys, columns), dim=True)]
    head = _head(player, step, columns)
    room = max(3, rows - len(head) - len(foot))
    return [*head, *_fitted(_body(player, step, columns, room), columns, room), *foot]


def everything(player: Player, *, columns: int) -> list[str]:
    """The step under the cursor, in as many lines as it takes."""
    step = player.here()
    return [*_head(player, step, columns), *_body(player, step, columns)]


def page(text: Sequence[str], *, top: int, columns: int, rows: int) -> list[str]:
    """A screen of `rows` lines of a text, from line `top` on, and how to move in it."""
    room = max(1, rows - 1)
    shown = list(text[top : top + room])
    place = "" if len(text) <= room else f"lines {top + 1} to {top + len(shown)} of {len(text)}  "
    return [*shown, *[""] * (room - len(shown)), style(_cut(place + PAGE_KEYS, columns), dim=True)]


def lines(player: Player, *, columns: int | None) -> Iterator[str]:
    """Every step as a line, each finding after the step that shows it: text for a pipe, a file, or a pager."""
    yield "\n".join(opening(player, columns))
    width = max((len(e.request or "") for e in player.events), default=0)
    engines = len({event.engine for event in player.events})
    several_connectors = len({event.connector for event in player.events} - {""}) > 1
    digits = len(str(len(player.events)))
    today = ""
    for step in player.steps():
        event = step.event
        if day(at_ns(event)) != today:
            today = day(at_ns(event))
            yield style(f"\n{today} (UTC)", dim=True)
        if step.gap:
            gap = words.some(step.gap, "event")
            yield style(f"{'':{digits}}  ... {gap} of {plain(event.request or '')} missing here", fg="yellow")
        about = plain(event.request or words.NOTHING)
        where = f"{plain(_engine(player, event))}  " if engines > 1 else ""
        by = _recorded_by(event, name_connector=several_connectors)
        what = words.kind(event.kind) + (f" ({by})" if by else "")
        account = "; ".join(_changes(step))
        yield (
            f"{step.number:>{digits}}  {style(clock(at_ns(event)), dim=True)}  {where}{about:<{width}}  "
            f"{style(what, bold=True)}: {_described(event)}" + (style(f"  [{account}]", fg="blue") if account else "")
        )
        indent = digits + _GAP
        yield from (" " * indent + line for line in _findings(step, None if columns is None else columns - indent))


def _what_was_read(player: Player) -> Iterator[str]:
    events = player.events
    begin_ns, end_ns = player.begin_ns, max(e.end_ns for e in events)
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
    """What was not read, what a newer kvtrail wrote, and what others did."""
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


def _head(player: Player, step: Step, columns: int) -> list[str]:
    event = step.event
    since = (at_ns(event) - player.begin_ns) / 1e9
    place = f"Step {step.number} of {len(player.events)}"
    if len(player) < len(player.events):
        place += f" ({player.place} of {len(player)} shown)"
    at = f"{day(at_ns(event))} {clock(at_ns(event))} UTC, {since:+,.3f} s"
    findings = words.some(len(player.findings), "finding")
    request = f"request {event.request}, {words.run(event.epoch)}" if event.request else "no request"
    facts = ", ".join(part for part in (request, event.connector, f"engine {_engine(player, event)}") if part)
    lines = [style(line, bold=True) for line in wrapped(f"{place}   {at}   {findings}", columns, rest="  ")]
    return [*lines, _cut(plain(facts), columns), style("-" * columns, dim=True)]


def _body(player: Player, step: Step, columns: int, room: int | None = None) -> list[str]:
    """What stands below the head: the step and, with `room`, the steps around it in the rest of this many lines."""
    if room is not None and columns >= WIDE:
        right = columns * 2 // 5
        left = columns - right - _GAP
        account = ["", *_account_table(step)] if step.after is not None else []
        beside = [*_says(step, right), *account, *_after_a_line(_findings(step, right))]
        return _side_by_side(_around(player, left, room), _fitted(beside, right, room), left)
    is_beside = columns >= SIDE_BY_SIDE and step.after is not None
    left = columns - ACCOUNT - _GAP if is_beside else columns
    texts, account, findings = _says(step, left), [], _after_a_line(_findings(step, left))
    if step.after is not None and not is_beside:
        numbers = (f"{name} {now}{_before(before)}" for name, now, before in _account(step))
        account = wrapped("; ".join(numbers), columns, first="account: ", rest="  ")
    if room is None or not findings:
        texts += [*account, *findings]
    else:  # what is left out for want of room is the account
        texts += [*findings, *_after_a_line(account)]
    if room is not None and (listed := max(room // LEAST_LISTED, room - len(texts) - 1)) > 1:
        texts = [*_around(player, left, listed), "", *_fitted(texts, left, room - listed - 1)]
    return _side_by_side(texts, _account_table(step), left) if is_beside else texts


def _says(step: Step, columns: int) -> list[str]:
    """The step in words, how long it took, who recorded it, and whether events are missing before it."""
    event = step.event
    by = _recorded_by(event, name_connector=False)
    took = f"took {words.duration(event.end_ns - event.start_ns)}" + (f", recorded by {by}" if by else "")
    kind = words.kind(event.kind)
    texts = wrapped(f"{kind}: {_described(event)}; {took}", columns, rest="  ")
    texts[0] = texts[0].replace(kind, style(kind, bold=True), 1)
    if step.gap:
        gap = f"{words.some(step.gap, 'event')} of this request missing just before: the account is incomplete."
        texts += [style(line, fg="yellow") for line in wrapped(gap, columns)]
    return texts


def _after_a_line(texts: list[str]) -> list[str]:
    """After an empty line, if there are any."""
    return ["", *texts] if texts else []


def _fitted(texts: Sequence[str], columns: int, room: int) -> list[str]:
    """Exactly `room` lines; if there are more, the last one counts the rest."""
    if (left := len(texts) - room + 1) > 1:
        more = style(_cut(f"... {words.some(left, 'more line')}: e shows all", columns), bold=True)
        return [*texts[: room - 1], more]
    return [*texts, *[""] * (room - len(texts))]


def _around(player: Player, columns: int, count: int) -> list[str]:
    """The steps around the cursor, a line each."""
    shown = player.around(count)
    here = player.number
    mine = next(event for number, event, _ in shown if number == here)
    is_alone = player.following is not None and len(player.following) == 1
    longest = min(LONGEST_ID, columns // 5, max(len(plain(event.request or words.NOTHING)) for _, event, _ in shown))
    digits = len(str(len(player.events)))
    texts = []
    for number, event, has_finding in shown:
        about = "" if is_alone else f"{_short(event.request or words.NOTHING, longest):<{longest}} "
        text = f"{'>' if number == here else ' '}{number:>{digits}}{'!' if has_finding else ' '} "
        text = _cut(f"{text}{clock(at_ns(event))} {about}{words.kind(event.kind)}: {_listed(event)}", columns)
        if number == here:
            text = style(text, bold=True, fg="red" if has_finding else None)
        elif has_finding:
            text = style(text, fg="red")
        elif event.request != mine.request or event.engine != mine.engine:
            text = style(text, dim=True)
        texts.append(text)
    return texts


def _engine(player: Player, event: Event) -> str:
    """The name of an event's engine for people."""
    return player.engine_names.get(event.engine, event.engine)


def _described(event: Event) -> str:
    """An event in words, with its blocks and keys, and the error it ended with."""
    numbers = event.numbers()
    parts = [words.described(event.kind, numbers)]
    if numbers.get("blocks_ids") is not None:
        parts.append(f"blocks {words.blocks_named(numbers)}")
    if keys := numbers.get("chunk_keys"):
        parts.append(f"keys {_value(keys)}")
    if event.error is not None:
        parts.append(f"raised {event.error}")
    return plain("; ".join(part for part in parts if part))


def _listed(event: Event) -> str:
    """An event in words, for a line that may be cut: an exception or a lookup's answer comes first."""
    if event.error is not None:
        return plain(f"raised {event.error}")
    facts, answered, answer = _described(event).partition("; answered ")
    answer, apart, rest = answer.partition("; ")
    return f"answered {answer}; {facts}{apart}{rest}" if answered else facts


def _recorded_by(event: Event, *, name_connector: bool) -> str:
    """The worker that recorded the event, if it was not the scheduler, and with `name_connector` the connector."""
    parts = [f"worker {event.rank}"] if event.role == "worker" else []
    if name_connector and event.connector:
        parts.append(event.connector)
    return plain(", ".join(parts))


def _changes(step: Step) -> list[str]:
    """What the step changed in the account: `computed 48 -> 336`, or `computed 48` if it was unknown before. The error is
    left out, since the event says it."""
    before, after = step.before or _BLANK, step.after or _BLANK
    return [
        f"{_name(name)} {_number(after, name)}" if old in (None, _BLANK[name]) else
        f"{_name(name)} {_number(before, name)} -> {_number(after, name)}"
        for name, (old, new) in step.changed.items()
        if name != "error" and not _is_redundant(name, new)
    ]  # fmt: skip


def _account(step: Step) -> list[tuple[str, str, str | None]]:
    """The account after the step: name, value, and the previous value if it changed."""
    if step.after is None:
        return []
    changed, before = step.changed, step.before or _BLANK
    return [
        (_name(name), _number(step.after, name), _number(before, name) if name in changed else None)
        for name in NUMBERS
        if name in ALWAYS
        or ((name in changed or step.after[name] != _BLANK[name]) and not _is_redundant(name, step.after[name]))
    ]


def _account_table(step: Step) -> list[str]:
    """The account, a number a line. What the step changed is bold, with its previous value."""
    rows = _account(step)
    width = max(len(name) for name, _, _ in rows)
    lines = [style("account after it", dim=True)]
    for name, now, before in rows:
        text = _cut(f"{name:<{width}}  {now}{_before(before)}", ACCOUNT)
        lines.append(text if before is None else style(text, bold=True))
    return lines


def _before(value: str | None) -> str:
    return "" if value is None else f"  (was {value})"


def _is_redundant(name: str, value: Any) -> bool:
    """Whether numbers by rank repeat the sum: there is only one rank."""
    return name in ("loaded_by_rank", "stored_by_rank") and len(value) < 2


def _findings(step: Step, columns: int | None) -> list[str]:
    """The findings of a step, and earlier ones that it shows again."""
    texts = [line for finding in step.findings for line in finding_text(finding, columns=columns).split("\n")]
    for finding in step.again:
        about = f" of request {plain(finding.request)}, {words.run(finding.epoch)}" if finding.request else ""
        texts += [style(line, fg="red") for line in wrapped(f"again: {finding.rule}{about}", columns, rest="  ")]
    if step.late:
        texts += wrapped("At the end of the history, because something never came:", columns)
        texts += [line for finding in step.late for line in finding_text(finding, columns=columns).split("\n")]
    return texts


def _number(account: Mapping[str, Any], name: str) -> str:
    """A number of an account."""
    if name == "waited_ns":
        return words.waiting(account[name], account["wait_loads"])
    return _value(account[name])


def _value(of: Any) -> str:
    """A value of an account or an event."""
    match of:
        case Mapping():
            ranks = ", ".join(f"rank {rank}: {words.count(number)}" for rank, number in sorted(of.items()))
            return ranks or words.NOTHING
        case list() | tuple():
            shown = ", ".join(f"{x[0]} to {x[1]}" if isinstance(x, tuple) else str(x) for x in of[: words.MAX_RUNS])
            rest = len(of) - words.MAX_RUNS
            return plain(shown) + (f" and {words.count(rest)} more" if rest > 0 else "") or words.NOTHING
        case _:
            return plain(words.value(of))


def _name(field: str) -> str:
    return NAMES.get(field, field).replace("_", " ")


def _side_by_side(left: Sequence[str], right: Sequence[str], columns: int) -> list[str]:
    rows = max(len(left), len(right))
    lefts, rights = [*left, *[""] * (rows - len(left))], [*right, *[""] * (rows - len(right))]
    return [
        one + " " * (columns - len(unstyle(one)) + _GAP) + other if other else one
        for one, other in zip(lefts, rights, strict=True)
    ]


def _short(name: str, columns: int) -> str:
    """A request's id, cut in the middle: the caller chose its beginning, and its end sets it apart from others."""
    name = plain(name)
    begin = (columns - 2) // 2
    return name if len(name) <= columns else f"{name[:begin]}..{name[begin + 2 - columns :]}"


def _cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else text[: max(0, columns - 3)] + "..."
