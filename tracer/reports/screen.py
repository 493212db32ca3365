"""One moment of a history as text: a screen full of it, or a line. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from click import style, unstyle

from kvtrail.tracer.model import words
from kvtrail.tracer.model.findings import Finding, clock
from kvtrail.tracer.replay.player import Player
from kvtrail.tracer.replay.step import Step, at_ns
from kvtrail.tracer.reports import step_text
from kvtrail.tracer.reports.findings import finding_text
from kvtrail.tracer.reports.terminal import plain, wrapped

KEYS = (
    ("n, space, right", "next step"),
    ("p, left", "step before"),
    ("f, F", "next finding, finding before"),
    ("r", "go to a request"),
    ("o", "only this request, or all again"),
    ("g", "go to a step by its number"),
    ("Home, End", "first step, last step"),
    ("e", "everything of this step, where it does not fit"),
    ("?", "this page"),
    ("q", "quit"),
)
SHORT_KEYS = "n next  p back  f finding  r request  o only  g step  ? help  q quit"
SIDE_BY_SIDE = 96
"""Columns from which on the account stands beside the events."""
ACCOUNT = 34
"""Columns of the account where it stands beside."""
MOST_AROUND = 11
"""Steps that are listed around the one under the cursor."""
LONGEST_ID = 20
"""Columns of a request's id where steps are listed."""
_GAP = 2


def opening(player: Player, columns: int | None) -> list[str]:
    """What was read and what was not, and how the requests stand."""
    return [
        line
        for text in (*step_text.read(player), step_text.verdicts(player))
        for line in wrapped(text, columns, rest="  ")
    ]


def help_page(player: Player, columns: int) -> list[str]:
    """The first page: what was read, and the keys."""
    width = max(len(keys) for keys, _ in KEYS)
    lines = [style("kvtrail replay", bold=True), "", *opening(player, columns), ""]
    for keys, what in KEYS:
        lines += wrapped(what, columns, first=f"  {keys:<{width}}  ", rest=" " * (width + 4))
    return lines


def moment(player: Player, *, columns: int, rows: int, message: str = "") -> list[str]:
    """The step under the cursor as a screen of at most `rows` lines: the steps around it, what it says, what it let be
    found, and the account of its request. What does not fit is counted."""
    step = player.here()
    foot = [style(line, bold=True) for line in wrapped(message, columns)]
    if not message:
        foot = [style(_cut(SHORT_KEYS, columns), dim=True)]
    head = _head(player, step, columns)
    room = max(3, rows - len(head) - len(foot))
    body = _body(player, step, columns, around=max(1, min(MOST_AROUND, (room - 4) // 3)))
    if len(body) > room:
        left = len(body) - room + 1
        body = [*body[: room - 1], style(_cut(f"... {words.some(left, 'more line')}: e shows all", columns), bold=True)]
    body += [""] * (room - len(body))
    return [*head, *body, *foot]


def everything(player: Player, *, columns: int) -> list[str]:
    """The step under the cursor, however many lines that takes."""
    step = player.here()
    return [*_head(player, step, columns), *_body(player, step, columns, around=1)]


def lines(player: Player, *, columns: int | None) -> Iterator[str]:
    """Every step as a line, with the findings where they happen: text for a pipe, a file, or a pager."""
    yield "\n".join(opening(player, columns))
    width = max((len(e.request or "") for e in player.events), default=0)
    engines = len({event.engine for event in player.events})
    connectors = step_text.several_connectors(player)
    digits = len(str(len(player.events)))
    today = ""
    for step in player.steps():
        event = step.event
        if (day := step_text.day(at_ns(event))) != today:
            today = day
            yield style(f"\n{day} (UTC)", dim=True)
        if step.gap:
            gap = words.some(step.gap, "event")
            yield style(f"{'':{digits}}  ... {gap} of {plain(event.request or '')} missing here", fg="yellow")
        about = plain(event.request or words.NOTHING)
        where = f"{plain(event.engine)}  " if engines > 1 else ""
        what = words.kind(event.kind) + (f" ({teller})" if (teller := step_text.by(event, several=connectors)) else "")
        account = "; ".join(step_text.changes(step))
        yield (
            f"{step.number:>{digits}}  {style(clock(at_ns(event)), dim=True)}  {where}{about:<{width}}  "
            f"{style(what, bold=True)}: {step_text.said(event)}"
            + (style(f"  [{account}]", fg="blue") if account else "")
        )
        yield from _indented(_found(step, None if columns is None else columns - digits - _GAP), digits + _GAP)


def _head(player: Player, step: Step, columns: int) -> list[str]:
    event = step.event
    since = (at_ns(event) - player.begin_ns) / 1e9
    place = f"Step {step.number} of {len(player.events)}"
    if len(player) < len(player.events):
        place += f" ({player.place} of {len(player)} shown)"
    at = f"{step_text.day(at_ns(event))} {clock(at_ns(event))} UTC, {since:+,.3f} s"
    found = words.some(len(player.findings), "finding")
    whose = f"request {event.request}, epoch {event.epoch}" if event.request else "no request"
    facts = ", ".join(part for part in (whose, event.connector, f"engine {event.engine}") if part)
    lines = [style(line, bold=True) for line in wrapped(f"{place}   {at}   {found}", columns, rest="  ")]
    lines += [_cut(plain(facts), columns), style("-" * columns, dim=True)]
    return lines


def _body(player: Player, step: Step, columns: int, *, around: int) -> list[str]:
    beside = columns >= SIDE_BY_SIDE and step.after is not None
    left = columns - ACCOUNT - _GAP if beside else columns
    steps = _around(player, left, around) if around > 1 else []
    event = step.event
    teller = step_text.by(event, several=False)
    took = f"took {words.duration(event.end_ns - event.start_ns)}" + (f", told by {teller}" if teller else "")
    kind = words.kind(event.kind)
    says = wrapped(f"{kind}: {step_text.said(event)}; {took}", left, rest="  ")
    says[0] = says[0].replace(kind, style(kind, bold=True), 1)
    if step.gap:
        gap = f"{words.some(step.gap, 'event')} of this request missing just before: the account is incomplete."
        says += [style(line, fg="yellow") for line in wrapped(gap, left)]
    found = _found(step, left)
    texts = [*steps, *([""] if steps else []), *says]
    if beside:
        return _side_by_side([*texts, *([""] if found else []), *found], _table(step), left)
    account = wrapped("; ".join(_phrases(step)), columns, first="account: ", rest="  ") if step.after else []
    return [*texts, *account, *([""] if found else []), *found]


def _around(player: Player, columns: int, lines: int) -> list[str]:
    """The steps next to the cursor, a line each."""
    shown = player.around(lines)
    here = player.number
    mine = next(event for number, event, _ in shown if number == here)
    longest = min(LONGEST_ID, columns // 4)
    alone = player.following is not None and len(player.following) == 1
    texts = []
    for number, event, found in shown:
        about = "" if alone else f"{_short(event.request or words.NOTHING, longest):<{longest}} "
        mark = "!" if found else " "
        text = f"{'>' if number == here else ' '}{number:>{len(str(len(player.events)))}}{mark} "
        text = _cut(f"{text}{clock(at_ns(event))} {about}{words.kind(event.kind)}: {step_text.said(event)}", columns)
        if number == here:
            text = style(text, bold=True, fg="red" if found else None)
        elif found:
            text = style(text, fg="red")
        elif event.request != mine.request or event.engine != mine.engine:
            text = style(text, dim=True)
        texts.append(text)
    return texts


def _table(step: Step) -> list[str]:
    """The account, a number a line; what the step changed is bold, with its value before."""
    rows = step_text.account(step)
    width = max(len(name) for name, _, _ in rows)
    lines = [style("account after it", dim=True)]
    for name, now, before in rows:
        text = _cut(f"{name:<{width}}  {now}" + (f"  (was {before})" if before is not None else ""), ACCOUNT)
        lines.append(style(text, bold=True) if before is not None else text)
    return lines


def _phrases(step: Step) -> list[str]:
    return [
        f"{name} {now}" + (f" (was {before})" if before is not None else "")
        for name, now, before in step_text.account(step)
    ]


def _found(step: Step, columns: int | None) -> list[str]:
    """The findings of a step, and those that it repeats."""
    texts = [line for finding in step.findings for line in finding_text(finding, columns=columns).split("\n")]
    for finding in step.again:
        texts += [style(line, fg="red") for line in wrapped(f"again: {_named(finding)}", columns, rest="  ")]
    if step.late:
        texts += wrapped("At the end of the history, of what has not come:", columns)
        texts += [line for finding in step.late for line in finding_text(finding, columns=columns).split("\n")]
    return texts


def _named(finding: Finding) -> str:
    about = f" of request {plain(finding.request)}, epoch {finding.epoch}" if finding.request else ""
    return f"{finding.rule}{about}"


def _side_by_side(left: Sequence[str], right: Sequence[str], columns: int) -> list[str]:
    rows = max(len(left), len(right))
    lefts, rights = [*left, *[""] * (rows - len(left))], [*right, *[""] * (rows - len(right))]
    return [
        one + " " * (columns - len(unstyle(one)) + _GAP) + other if other else one
        for one, other in zip(lefts, rights, strict=True)
    ]


def _indented(texts: Sequence[str], columns: int) -> Iterator[str]:
    return (" " * columns + text for text in texts)


def _short(name: str, columns: int) -> str:
    """A request's id cut in the middle: the beginning is the caller's, the end tells it from others."""
    name = plain(name)
    begin = (columns - 2) // 2
    return name if len(name) <= columns else f"{name[:begin]}..{name[begin + 2 - columns :]}"


def _cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else text[: max(0, columns - 3)] + "..."
