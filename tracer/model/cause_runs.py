"""Parts of a prompt put together for people: neighbours that one sentence explains are one run.

A run is as a part is in the api. Where its parts were lost at several moments, `at_ns` is the first of them and `to_ns` the
last; where several requests did it, `request` is the one of most tokens, and `others` how many more there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

Part = Mapping[str, Any]
Run = dict[str, Any]
FEW = 24
"""Runs that can be read one by one; where there are more, they are not told apart by who did it."""
_ALIKE = ("cause", "tier", "why", "engine", "unstored", "refusal")
_BY_WHOM = (*_ALIKE, "request")


def runs(parts: Sequence[Part], *, few: int = FEW) -> list[Run]:
    """The runs of a prompt, in order."""
    found = _together(parts, _BY_WHOM)
    return found if len(found) <= few else _together(parts, _ALIKE)


def _together(parts: Iterable[Part], names: Sequence[str]) -> list[Run]:
    """Neighbours whose fields of these names are alike."""
    return [_run(list(alike)) for _, alike in groupby(parts, key=lambda part: [part.get(name) for name in names])]


def _run(parts: Sequence[Part]) -> Run:
    run = {**parts[0], "tokens": sum(part["tokens"] for part in parts)}
    moments = [part["at_ns"] for part in parts if part.get("at_ns")]
    if moments and min(moments) < max(moments):
        run |= {"at_ns": min(moments), "to_ns": max(moments)}
    by_whom: Counter[str] = Counter()
    for part in parts:
        if part.get("request"):
            by_whom[part["request"]] += part["tokens"]
    if len(by_whom) > 1:
        run |= {"request": by_whom.most_common(1)[0][0], "others": len(by_whom) - 1}
    return run
