"""Conditions that filter requests: `duration > 2s and evicted >= 100`. They test times, tokens, and labels. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from kvtrail.tracer.model.causes import Cause


class Time(StrEnum):
    """The measures of time, in nanoseconds."""

    DURATION = "duration"
    """From the arrival to the end."""
    FIRST_TOKEN = "first_token"
    """From the arrival to the first token: the step after the one that computed the prompt."""
    QUEUED = "queued"
    LOOKUP = "lookup"
    """From the first 'ask me later' to the connector's answer."""
    LOAD_WAIT = "load_wait"
    """Waiting for an asynchronous load."""
    PREFILL = "prefill"
    DECODE = "decode"
    RUNNING = "running"
    """Prefill or decode, if it is not recorded which."""
    PREEMPTED = "preempted"


TIMES = tuple(map(str, Time))
COUNTS = ("prompt", "computed", "recomputed", "preemptions")
"""The measures that are counts: tokens, or preemptions."""
CAUSES = tuple(map(str, Cause))
"""The measures that are the tokens of a cause."""
TEXTS = ("tenant", "connector", "prefix")
"""The labels, which are compared as whole texts. A prefix has its name from `model.prefixes`."""
UNKNOWN = "unknown"
"""The tenant, connector or prefix of requests for which it was not recorded."""
ENDING = "ending"
"""How a request ended according to its account (`liveness.request_outcome.ending_of`). Users cannot write this name, since
the outcome also depends on the engine."""
AMONG = "in"
"""The operator of a condition on the `ENDING`, with a tuple of texts as its value, each an engine and an ending."""
NAMES = (*TIMES, *COUNTS, *CAUSES, *TEXTS)
OPERATORS = (">=", "<=", ">", "<", "=")
LARGEST = 2**62
_SHOWN = 40
"""Characters of a number in a message."""
_UNITS_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_CONDITION = re.compile(r"\s*([a-z][a-z_-]*)\s*(>=|<=|>|<|=)\s*(\S.*?)\s*")
_AND = re.compile(r"\s+and\s+|,", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zµ]*)")


class BadCondition(ValueError):
    """A text that is not a condition; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition.

    Attributes:
        name: the compared measure or label, one of `NAMES`, or `ENDING`.
        operator: one of `OPERATORS`, or `AMONG`.
        value: nanoseconds, a count, or a text; for the ending, all texts that meet the condition.
    """

    name: str
    operator: str
    value: int | str | tuple[str, ...]


def parsed(text: str) -> tuple[Condition, ...]:
    """The conditions in a text, which are joined by `and` or commas. A request must meet all of them. Times have a unit: ns,
    us, ms, s, min or h.

    Raises:
        BadCondition: one of them is not a condition.
    """
    parts = [part for part in _AND.split(text) if part.strip()]
    return tuple(map(_condition, parts))


def _condition(text: str) -> Condition:
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise BadCondition(f"{text.strip()!r} is no condition; write one like 'duration > 2s' or 'evicted >= 100'")
    name, operator, value = found.groups()
    if name not in NAMES:
        raise BadCondition(f"{name!r} cannot be filtered by; these can: {', '.join(NAMES)}")
    if name in TEXTS:
        if operator != "=":
            raise BadCondition(f"{name!r} is a text, which can only be compared with =")
        return Condition(name, operator, value)
    return Condition(name, operator, _number(name, value))


def _number(name: str, text: str) -> int:
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise BadCondition(f"{text!r} is no number to compare {name!r} with")
    number, unit = found.groups()
    if name not in TIMES and unit:
        raise BadCondition(f"{name!r} is a count, which has no unit: {text!r}")
    if name in TIMES and unit not in _UNITS_NS:
        raise BadCondition(f"{name!r} is a time, which needs a unit ({', '.join(_UNITS_NS)}): {text!r}")
    value = float(number) * _UNITS_NS.get(unit, 1)
    if value > LARGEST:
        raise BadCondition(f"{text[:_SHOWN]!r} is too large to compare {name!r} with")
    return round(value)
