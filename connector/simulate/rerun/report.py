"""The report of a re-run, as text. The JSON form is `Rerun.as_dict`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kvtrail.connector.simulate.rerun.outcome import Compared, Meaning, Outcome, Rerun
from kvtrail.tracer.model.findings import clock
from kvtrail.tracer.reports.terminal import plain, wrapped

MOST_LISTED = 12
"""Numbers of calls that are listed one by one."""
INDENT = "  "
_MEANT = {
    Meaning.FIX: "a fix",
    Meaning.NEW_FAULT: "a new fault",
    Meaning.OTHER: "another answer, and by the rules no better and no worse",
}


def as_text(rerun: Rerun, *, columns: int | None = None) -> str:
    """The report for a terminal of so many columns, or for a file."""
    counts = rerun.outcomes
    outcomes = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome)
    lines = wrapped(
        f"{rerun.connector}, as recorded, against {rerun.against}: {len(rerun.calls)} calls, {outcomes}.", columns
    )
    if (first := rerun.first) is not None:
        lines += ["", "The first divergence:", *_call(first, columns), *_differences(rerun, columns)]
    lines += [*_again(rerun, columns), *_not_compared(rerun, columns)]
    if rerun.notes:
        lines += ["", "What the recording does not show:"]
        lines += [line for note in rerun.notes for line in wrapped(plain(note), columns, first=INDENT)]
    return "\n".join([*lines, "", *wrapped(_verdict(rerun), columns)])


def _verdict(rerun: Rerun) -> str:
    if rerun.differs:
        return f"{rerun.against} answers differently."
    if rerun.first is not None:
        return f"{rerun.against} fixes what the recording shows, and is otherwise the same as far as can be compared."
    faults = ", the recorded faults included" if rerun.reproduced else ""
    return f"{rerun.against} answers the same{faults}, as far as can be compared."


def _call(call: Compared, columns: int | None) -> list[str]:
    rows = [
        ("asked", call.asked),
        ("recorded", call.recorded),
        ("now", call.answered),
    ]
    about = "" if call.request is None else f" of {plain(call.request)} (epoch {call.epoch})"
    lines = wrapped(f"#{call.number} {call.method}{about}, at {clock(call.at_ns)}", columns, first=INDENT)
    for name, values in rows:
        first = f"{INDENT * 2}{name:<10}"
        lines += wrapped(_values(values), columns, first=first, rest=" " * len(first))
    if call.meaning is not None:
        lines += wrapped(f"{_MEANT[call.meaning]}{_why(call)}", columns, first=INDENT * 2)
        lines += wrapped(plain(call.explanation), columns, first=INDENT * 3)
    return lines


def _why(call: Compared) -> str:
    def fault(breaks: Sequence[str], answer: Mapping[str, Any]) -> str:
        if breaks:
            return f"breaks {', '.join(breaks)}"
        return "is an error" if "error" in answer else "breaks no rule"

    if call.meaning is Meaning.OTHER:
        return "."
    return (
        f": the recorded answer {fault(call.recorded_breaks, call.recorded)}, this one"
        f" {fault(call.breaks, call.answered)}."
    )


def _differences(rerun: Rerun, columns: int | None) -> list[str]:
    lines = ["", "All differences:"]
    for meaning in Meaning:
        numbers = [call.number for call in rerun.calls if call.meaning is meaning]
        if numbers:
            lines += wrapped(
                f"{len(numbers)} {_plural(meaning, len(numbers))}: {_list(numbers)}", columns, first=INDENT
            )
    return lines


def _again(rerun: Rerun, columns: int | None) -> list[str]:
    """The recorded faults that this connector has too."""
    broken: dict[str, list[int]] = {}
    errors: list[Compared] = []
    for call in rerun.reproduced:
        for rule in call.breaks:
            broken.setdefault(rule, []).append(call.number)
        if "error" in call.answered:
            errors.append(call)
    if not broken and not errors:
        return []
    lines = ["", "Recorded, and reproduced:"]
    for rule, numbers in sorted(broken.items()):
        lines += wrapped(f"{rule}, {_times(len(numbers))}: {_list(numbers)}", columns, first=INDENT)
    for call in errors:
        text = plain(str(call.answered["error"]))
        lines += wrapped(f"#{call.number} {call.method} raised {text}", columns, first=INDENT, rest=INDENT * 2)
        if (then := plain(str(call.recorded["error"]))) != text:
            lines += wrapped(f"(in the recording's words: {then})", columns, first=INDENT * 2)
    return lines


def _not_compared(rerun: Rerun, columns: int | None) -> list[str]:
    reasons = Counter(call.reason for call in rerun.calls if call.outcome is Outcome.NOT_COMPARABLE)
    if not reasons:
        return []
    lines = ["", "Not comparable:"]
    for reason, number in reasons.most_common():
        first = f"{INDENT}{number:>5}  "
        lines += wrapped(plain(reason), columns, first=first, rest=" " * len(first))
    return lines


def _values(values: Mapping[str, Any]) -> str:
    values_text = ", ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in values.items())
    return plain(values_text) or "nothing"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} {_value(each)}" for name, each in value.items() if each is not None) + "}"
    if isinstance(value, list | tuple):
        return " ".join(_value(each) for each in value) or "none"
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _plural(meaning: Meaning, number: int) -> str:
    if number == 1:
        return meaning.value
    return {Meaning.FIX: "fixes", Meaning.NEW_FAULT: "new faults", Meaning.OTHER: "other answers"}[meaning]


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _list(numbers: Sequence[int]) -> str:
    listed = ", ".join(f"#{number}" for number in numbers[:MOST_LISTED])
    return f"{listed}, and {len(numbers) - MOST_LISTED} more" if len(numbers) > MOST_LISTED else listed
