"""Why a finding is a contradiction, in sentences that need no glossary; its exact numbers are apart."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import text
from kvtrail.tracer.model.words import described, ending, kind, value

_EPOCH = re.compile(r"\bepoch (\d+)\b")
_END = re.compile(r"(?<=\.) (?=[A-Z])")
_LET = re.compile(r"^Let (\w+) = ")


def run(epoch: int) -> str:
    """When in a request's life: before it was preempted, or after which preemption."""
    return "before any preemption" if not epoch else f"after it was preempted {ending(epoch)}"


def sentences(finding: Row) -> list[str]:
    """The explanation, sentence by sentence."""
    parts = _END.split(finding["explanation"])
    return [_LET.sub(r"\1 is ", _EPOCH.sub(lambda found: run(int(found[1])), part)) for part in parts]


def seen(finding: Row, *, now_ns: int) -> str:
    """Which rule found it, how often, and when."""
    first, last = (text.clock(finding[end], now_ns=now_ns) for end in ("first_ns", "last_ns"))
    when = f"at {first}" if finding["count"] == 1 else f"{ending(finding['count'])}, from {first} to {last}"
    return f"rule {finding['rule']}, seen {when} UTC"


def evidence(finding: Row, steps: Mapping[str, int]) -> list[Row]:
    """The events that prove it, as rows; `steps` has the number of each step by its span's id."""
    return [
        {
            "Proof": witness["label"],
            "Step": steps.get(witness["span_id"]),
            "Time (UTC)": text.clock(witness["at_ns"]),
            "Kind": kind(witness["kind"]),
            "Says": described(witness["kind"], witness["numbers"]),
        }
        for witness in finding["witness"]
    ]


def numbers(finding: Row) -> list[Row]:
    """The numbers behind the sentences, as the rule names them."""
    return [{"Number": name.replace("_", " "), "Value": value(number)} for name, number in finding["numbers"].items()]
