"""Log lines inside JSON: the messages that container runtimes, collectors and structured loggers write as JSON objects.

Docker, fluentd, Loki, journald, Google Cloud, Elastic, Dynamo and Python's JSON loggers each name the message differently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from kvtrail.tracer.events.spans import LATEST_NS

ISO = re.compile(
    r"(?<![\d-])(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(?: ?(Z|UTC|[+-]\d\d:?\d\d)(?![\d:]))?(?![\d:])"
)
"""A date and a time, with its fraction and its zone."""
_MESSAGES = (
    "log", "message", "MESSAGE", "msg", "textPayload", "line", "_raw", "event", "body", "Body", "@message", "Message",
    "LogEntry", "log_line", "stringValue",
)  # fmt: skip
"""Fields with the message, the first that is there."""
_TRACEBACKS = ("exc_info", "exc_text", "exception", "traceback", "stack_trace", "error.stack_trace")
"""Fields in which structured loggers put a traceback, beside its message."""
_TIMES = (
    "time", "timestamp", "@timestamp", "ts", "asctime", "__REALTIME_TIMESTAMP", "timeUnixNano", "_time", "date",
    "Timestamp", "TimeGenerated", "receiveTimestamp",
)  # fmt: skip
_LEVELS = ("levelname", "level", "log.level")
_NO_MESSAGES = frozenset({"labels", "stream", "resource", "attributes", "metric"})
"""Fields that describe where a message comes from, if they hold no message of their own."""
_FIELD = re.compile(r'\s*"(?P<name>[\w@.]{1,40})"\s*:\s*(?P<text>"(?:[^"\\]|\\.)*")\s*,?\s*')
"""A line of a pretty-printed object."""
_PREFIX_FITS = 200
_MAX_DEPTH = 8


@dataclass(slots=True)
class Message:
    """A message without its JSON; `at_ns` and `level` are those of the JSON, None and empty where it has none."""

    text: str
    at_ns: int | None = None
    level: str = ""


def messages(line: str) -> list[Message]:
    """The messages of a line that is JSON, or an object after a time or the name of a container. None of a line that is not
    JSON, or holds no message."""
    text = line.strip().rstrip(",")
    begins = 0 if text.startswith("[{") else text.find("{", 0, _PREFIX_FITS)
    if begins < 0 or not text.endswith(("}", "]")):
        return _pretty(line)
    before = text[:begins]
    if '"' in before:  # a sentence that ends with an object
        return []
    try:
        value = json.loads(text[begins:], strict=False)
    except (ValueError, RecursionError):
        return []
    return list(_messages(value, _printed(ISO.search(before)), "", 0))


def moment(day: str, time: str, fraction: str | None, zone: str | None) -> int | None:
    """The groups of `ISO` in Unix nanoseconds; a time without a zone is UTC. None for a date that does not exist."""
    offset = "+00:00" if zone in (None, "", "Z", "UTC") else zone
    try:
        at = datetime.fromisoformat(f"{day}T{time}{offset}")
    except ValueError:  # 2026-13-45
        return None
    seconds = (at - datetime.fromtimestamp(0, UTC)) // timedelta(seconds=1)
    return seconds * 10**9 + int((fraction or "0").ljust(9, "0"))


def _pretty(line: str) -> list[Message]:
    match = _FIELD.fullmatch(line)
    if match is None or match["name"] not in _MESSAGES:
        return []
    try:
        return [Message(json.loads(match["text"], strict=False))]
    except ValueError:
        return []


def _messages(value: Any, at_ns: int | None, level: str, depth: int) -> Iterator[Message]:
    """The messages inside a value, with the time and the level of the objects around them."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for each in value:
            if _is_stamped(each):  # Loki's API: a time and a line
                yield Message(each[1], _time(each[0]))
            elif isinstance(each, dict | list):
                yield from _messages(each, at_ns, level, depth + 1)
    elif isinstance(value, dict):
        at_ns = next((at for name in _TIMES if (at := _time(value.get(name))) is not None), at_ns)
        level = next((str(value[name]).upper() for name in _LEVELS if isinstance(value.get(name), str)), level)
        for name in _MESSAGES:
            text = _text(value.get(name))
            if text is not None:
                more = (_text(value.get(each)) for each in _TRACEBACKS)
                yield Message("\n".join([text, *filter(None, more)]), at_ns, level)
                return
        for name, each in value.items():
            if isinstance(each, dict | list) and (name not in _NO_MESSAGES or _has_message(each)):
                yield from _messages(each, at_ns, level, depth + 1)


def _text(value: Any) -> str | None:
    """A message as text; journald writes one with odd letters as a list of bytes."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(each, int) and 0 <= each < 256 for each in value):
        return bytes(value).decode("utf-8", errors="replace")
    return None


def _is_stamped(value: Any) -> bool:
    return isinstance(value, list) and len(value) >= 2 and isinstance(value[1], str) and _time(value[0]) is not None


def _has_message(value: Any) -> bool:
    return isinstance(value, dict) and any(isinstance(value.get(name), str) for name in _MESSAGES)


def _printed(match: re.Match[str] | None) -> int | None:
    at_ns = None if match is None else moment(*match.groups())
    return at_ns if at_ns is not None and 0 <= at_ns < LATEST_NS else None


def _time(value: Any) -> int | None:
    """A time in Unix nanoseconds, printed as a date, or as seconds, milliseconds, microseconds or nanoseconds."""
    if isinstance(value, str):
        if (match := ISO.match(value)) is not None:
            return _printed(match)
        if re.fullmatch(r"\d{9,19}(?:\.\d{1,9})?", value) is None:
            return None
        value = float(value) if "." in value else int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 10**9 <= value < LATEST_NS:
        return None
    for factor in (10**9, 10**6, 10**3, 1):
        if value * factor < LATEST_NS:
            return int(value * factor)
    return None
