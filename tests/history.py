"""A small language for histories in tests: one line, one call.

    L 749 c336 h256 -> 256 cached      a lookup: tokens, computed, matched (h? hides it), the answer
    L 749 c336 h256 -> 0 healed 256    the guard replaced 256 by 0
    L 749 c336 h256 -> 0 fresh         the connector says that it computed the answer anew
    L 749 c0 -> later                  'ask me later'; `async` after an answer makes it asynchronous
    A 256                              an allocation for 256 external tokens; `A 256 !Mismatch ...` raises
    Store 256+256 in 7                 256 tokens from 256 on, from 7 blocks of 32 tokens; Load likewise
    S 336+48                           the first step after admission: from 336, 48 tokens
    P                                  a preemption: the next epoch begins
    end                                the request ends
    # anything                         a remark

The request begins by itself. Times count up by a millisecond a line.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from tracer.detect import Detector
from tracer.events import Alloc, Event, Load, Lookup, Preempt, RequestEnd, RequestStart, Schedule, Store

START_NS = 1_764_725_076_000_000_000  # 2025-12-03 01:24:36 UTC, when LMCache #2158 was logged
BLOCK_SIZE = 32
_LOOKUP = re.compile(
    r"L (?P<total>\d+) c(?P<computed>\d+)(?: h(?P<matched>\d+|\?))? -> (?P<answer>-?\d+|later)(?P<flags>.*)"
)


def history(
    text: str, *, request: str = "cmpl-1-0-0123abcd", engine: str = "engine", recorder: str = "recorder"
) -> list[Event]:
    """The events that the text tells."""
    events: list[Event] = []
    epoch = 0

    def add(cls: type[Any], **fields: Any) -> None:
        at_ns = START_NS + len(events) * 1_000_000
        events.append(
            cls(
                engine=engine,
                recorder=recorder,
                sequence=len(events),
                connector="Connector",
                role="scheduler",
                rank=0,
                start_ns=at_ns,
                end_ns=at_ns + 10_000,
                span_id=f"{len(events) + 1:016x}",
                trace_id="0" * 31 + "1",
                request=request,
                external="cmpl-1-0",
                request_sequence=len(events),
                epoch=epoch,
                **fields,
            )
        )

    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    total = next((int(m["total"]) for line in lines if (m := _LOOKUP.fullmatch(line))), 100)
    add(RequestStart, total=total)
    for line in lines:
        if lookup := _LOOKUP.fullmatch(line):
            add(Lookup, **_lookup(lookup))
        elif alloc := re.fullmatch(r"A (\d+)(?: !(.*))?", line):
            add(Alloc, allocated=int(alloc[1]))
            if alloc[2]:
                events[-1] = replace(events[-1], error=alloc[2])
        elif moved := re.fullmatch(r"(Store|Load) (\d+)\+(\d+) in (\d+)", line):
            cls = Store if moved[1] == "Store" else Load
            add(cls, start=int(moved[2]), count=int(moved[3]), blocks_count=int(moved[4]), block_size=BLOCK_SIZE)
        elif schedule := re.fullmatch(r"S (\d+)\+(\d+)", line):
            add(Schedule, computed=int(schedule[1]), scheduled=int(schedule[2]), resumed=epoch > 0)
        elif line == "P":
            epoch += 1
            add(Preempt)
        elif line == "end":
            add(RequestEnd, total=total, outcome="stopped")
        else:
            raise ValueError(f"not a call: {line!r}")
    return events


def _lookup(match: re.Match[str]) -> dict[str, Any]:
    flags = match["flags"].split()
    answer = None if match["answer"] == "later" else int(match["answer"])
    matched = match["matched"]
    return {
        "total": int(match["total"]),
        "computed": int(match["computed"]),
        "matched": None if matched in (None, "?") else int(matched),
        "returned": answer,
        "is_async": "async" in flags,
        "cached": True if "cached" in flags else False if "fresh" in flags else None,
        "refused": int(flags[flags.index("healed") + 1]) if "healed" in flags else None,
    }


def judge(events: list[Event]) -> Detector:
    """The detector after all events, and after it has given up waiting for more."""
    detector = Detector()
    detector.feed(events)
    detector.settle()
    return detector


def rules_found(detector: Detector) -> list[str]:
    """The rules that have findings, sorted."""
    return sorted(finding.rule for held in detector.findings.values() for finding in held.values())
