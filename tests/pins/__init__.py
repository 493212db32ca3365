"""Pins: what the product says of fixed inputs, in text files. What changes by intention is reviewed as their diff.

Each file in `data/` is an area. `pins.py` writes them, `test_pins.py` and `test_check_pins.py` compare.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Set
from enum import Enum
from pathlib import Path
from typing import Any

PINS = Path(__file__).parent / "data"
WIDTH = 140
"""Characters of a line. What fits into one is written in one."""
DIGITS = 9
"""Significant digits of a number that is no integer: processors differ beyond them."""
SHOWN = 40
"""Differences that are named."""
LONGEST_SHOWN = 300
"""Characters of a value that a difference shows."""


def path_of(area: str) -> Path:
    """The file with the pins of an area."""
    return PINS / f"{area}.json"


def plain(value: Any) -> Any:
    """A value as JSON reads it back, without what differs between machines."""
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, bytes):
        return value.hex()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(each) for key, each in value.items()}
    if isinstance(value, Set):
        return sorted(map(plain, value), key=str)
    if hasattr(value, "__iter__"):
        return [plain(each) for each in value]
    return str(value)


def written(value: Any, indent: int = 0) -> str:
    """JSON with sorted keys: a container that fits into a line is one, any other has a line for each item."""
    short = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value or indent + len(short) <= WIDTH:
        return short
    if isinstance(value, dict):
        items = [
            f"{json.dumps(key, ensure_ascii=False)}: {written(each, indent + 1)}" for key, each in sorted(value.items())
        ]
    else:
        items = [written(each, indent + 1) for each in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    inner = ",\n".join(f"{' ' * (indent + 1)}{item}" for item in items)
    return f"{begin}\n{inner}\n{' ' * indent}{end}"


def read(area: str) -> Any:
    """The pins of an area as they are in its file; nothing where there is no file yet."""
    path = path_of(area)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(area: str, made: Mapping[str, Any]) -> None:
    """Write the pins of an area."""
    PINS.mkdir(exist_ok=True)
    path_of(area).write_text(f"{written(plain(made))}\n", encoding="utf-8")


def differences(pinned: Any, now: Any, place: str = "") -> Iterator[str]:
    """Each place at which two values differ, with both values."""
    if isinstance(pinned, dict) and isinstance(now, dict):
        for key in sorted({*pinned, *now}):
            here = f"{place} / {key}" if place else key
            if key not in now:
                yield f"{here}: is gone; it was {_shown(pinned[key])}"
            elif key not in pinned:
                yield f"{here}: is new: {_shown(now[key])}"
            else:
                yield from differences(pinned[key], now[key], here)
    elif isinstance(pinned, list) and isinstance(now, list):
        if len(pinned) != len(now):
            yield f"{place}: has {len(now)} items instead of {len(pinned)}"
        for number, (one, other) in enumerate(zip(pinned, now, strict=False)):
            yield from differences(one, other, f"{place}[{number}]")
    elif pinned != now or type(pinned) is not type(now):
        yield f"{place}: {_shown(now)} instead of {_shown(pinned)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]} ..."


def compare(area: str, made: Mapping[str, Any], *, pinned: Mapping[str, Any] | None = None) -> None:
    """Fail, with the places that differ, where an area is not as it is `pinned`: by default in its file.

    Raises:
        AssertionError: something differs.
    """
    found = list(differences(read(area) if pinned is None else pinned, plain(made)))
    more = f"\n... and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    assert not found, (
        f"{area} is not as tests/pins/data/{area}.json pins it; if this is intended, run `make pins` and review the diff:\n"
        + "\n".join(found[:SHOWN])
        + more
    )
