"""What somebody has pasted, a line of a log or the text of an alert: the ids, names and times in it. Pure.

Nothing is assumed of the format. Any word may be an id; whoever asks looks up which of them are. A time without a zone is
taken for UTC, as the pages show it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kvtrail.tracer.events.spans import LATEST_NS
from kvtrail.tracer.ingest.logs.lines import Lines
from kvtrail.tracer.ingest.logs.wrapped import ISO, moment

MAX_WORDS = 60
"""Words of a text that are considered."""
LEAST_NS = 1_500_000_000 * 10**9
"""The year 2017: a smaller number is no time in Unix nanoseconds or milliseconds."""
_UNIX = re.compile(r"(?<![\w.-])(\d{13}|\d{19})(?![\w.-])")
_TRACE = re.compile(r"(?<![0-9A-Za-z-])(?:00-)?([0-9a-f]{32})(?:-[0-9a-f]{16}-[0-9a-f]{2})?(?![0-9A-Za-z-])")
_APART = re.compile(r"[\s\"'`()\[\]{}<>,;=|&?#]+")
_AROUND = ".:!*/\\"
_LIKELY = re.compile(
    r"(?:chatcmpl|cmpl|embd|resp|msg|score|pool|rerank)-|[0-9a-f]{8}-[0-9a-f]{4}-|-[0-9a-f]{8}$", re.IGNORECASE
)
"""How ids of requests look: vLLM's, a UUID, or one with the suffix of an engine."""
_COMMON = re.compile(r"[\w./\\-]+\.(?:py|c|cc|cpp|cu|go|rs|log|json|so)(?::\d+)?|[\d.,:%+-]+\w{0,2}")
"""What is no id: the place in a source file, a number."""


@dataclass(frozen=True, slots=True)
class Pasted:
    """What a text contains.

    Attributes:
        words: possible ids and names, those first that look like a request's.
        likely: of these, how many do.
        traces: trace ids.
        times_ns: the times, in Unix nanoseconds, in order.
    """

    words: tuple[str, ...]
    likely: int
    traces: tuple[str, ...]
    times_ns: tuple[int, ...]


def pasted(text: str, *, now_ns: int) -> Pasted:
    """What a text contains. `now_ns` is the hint at the year where vLLM prints none."""
    traces = dict.fromkeys(_TRACE.findall(text))
    rest = _UNIX.sub(" ", ISO.sub(" ", _TRACE.sub(" ", text)))
    words = dict.fromkeys(word for word in _words(rest) if not _COMMON.fullmatch(word))
    likely = [word for word in words if _LIKELY.search(word)]
    others = sorted((word for word in words if not _LIKELY.search(word)), key=lambda word: not _has_digit(word))
    return Pasted(
        words=tuple([*likely, *others][:MAX_WORDS]),
        likely=min(len(likely), MAX_WORDS),
        traces=tuple(traces),
        times_ns=tuple(sorted({at_ns for at_ns in _times(text, now_ns) if LEAST_NS <= at_ns < LATEST_NS})),
    )


def _words(text: str) -> Iterator[str]:
    for piece in _APART.split(text):
        word = piece.strip(_AROUND)
        if len(word) > 1:
            yield word
        if ":" in word:  # `request:chatcmpl-1`
            yield from (part for each in word.split(":") if len(part := each.strip(_AROUND)) > 1)


def _has_digit(word: str) -> bool:
    return any(letter.isdigit() for letter in word)


def _times(text: str, now_ns: int) -> Iterator[int]:
    for day, time, fraction, zone in ISO.findall(text):
        if (at_ns := moment(day, time, fraction, zone)) is not None:
            yield at_ns
    for number in _UNIX.findall(text):
        yield int(number) * (10**6 if len(number) == 13 else 1)
    lines = Lines(file_ns=now_ns)
    for line in text.splitlines():
        for record in lines.split(line, 1):
            # vLLM's own header, which has no year; a damaged one has the hint's time.
            if record.level and not record.precise and record.at_ns != now_ns:
                yield record.at_ns
