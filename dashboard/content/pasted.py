"""What a pasted line of a log is about, in a sentence and links.

A `found` is what `/api/search` returns, defined in tracer/serve/api/search.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.tracer.model.words import some

MAX_TEXT = 8_000
"""Characters that the tracer takes."""
MAX_ID = 200
NAMED = 5
Link = tuple[str, str, Mapping[str, str]]
"""A page, the link's label, and the query of its address."""
_PART_OF_ID = re.compile(r"[\w.:@/+~-]*")


def is_text(search: str) -> bool:
    """Whether a search is a text, and no part of an id: it has a space, a quotation mark, or is too long."""
    return len(search) > MAX_ID or not _PART_OF_ID.fullmatch(search)


def sentence(found: Row, *, now_ns: int) -> str:
    """What the text names."""
    requests, rules, engines = found["requests"], found["rules"], found["engines"]
    parts = []
    if requests:
        parts.append(f"The text names {some(len(requests), 'request')}.")
    elif found["looked_for"]:
        names = ", ".join(map(text.plain, found["looked_for"][:NAMED])) + (
            ", ..." if found["looked_for"][NAMED:] else ""
        )
        parts.append(f"No request has {names} as its id or trace id, or as a part of it.")
    else:
        parts.append("The text has nothing in it that looks like the id of a request or a trace.")
    if engines:
        parts.append(f"Engine: {', '.join(map(text.plain, [*engines.values()][:NAMED]))}.")
    if rules:
        parts.append(f"Rule: {', '.join(rules)}.")
    if found["times_ns"]:
        moments = [text.clock(at_ns, now_ns=now_ns).partition(".")[0] for at_ns in found["times_ns"][:1]]
        parts.append(f"Its time is {moments[0]}, taken for UTC where it has no zone.")
    return " ".join(parts)


def links(found: Row, shown: TimeRange) -> list[Link]:
    """Where the text leads besides its requests: around its time, or else in the page's range."""
    since, until = found["since_ns"], found["until_ns"]
    has_time = since is not None and until is not None
    around = (TimeRange(since, until) if has_time else shown).address
    (engine,) = found["engines"] if len(found["engines"]) == 1 else ("",)
    when = "at that time" if has_time else "in this range"
    made: list[Link] = []
    if engine or has_time:
        made.append(("requests", f"Requests {when}", {**around, **({"on": engine} if engine else {})}))
    if has_time:
        made.append(("live", "Live at that time", {**around, **({"engine": engine} if engine else {})}))
    if engine or has_time or found["rules"]:
        rule = {"rule": found["rules"][0]} if found["rules"] else {}
        made.append(("findings", f"Findings {when}", {**around, **rule, **({"engine": engine} if engine else {})}))
    return made
