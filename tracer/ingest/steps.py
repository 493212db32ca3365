"""Splits the spans of steps: from columns to one `kv.schedule` per row.

Columns only make the recorder's requests smaller. All code after this module sees rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import Repr
from typing import Any

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.cache_groups import split
from kvtrail.tracer.events.events import KEYS

MAX_ROWS = 16_384
"""Maximum number of rows of a step. More are treated as damage: no engine runs that many requests at once."""
MAX_GROUPS = 64
"""Maximum number of KV cache groups of a model. More are treated as damage: current models have up to ten."""
MAX_SHARED = 2**19
"""Maximum product of a step's attributes and its rows, since each row gets all attributes. Recorders write a dozen."""
_COLUMNS = frozenset(column.key for column in semconv.ROWS)
_PLAIN = (
    (semconv.ROW_REQUESTS.key, semconv.REQUEST_ID.key, None),
    (semconv.ROW_NUMBERS.key, semconv.REQUEST_SEQUENCE.key, None),
    (semconv.ROW_COMPUTED.key, KEYS["computed"], None),
    (semconv.ROW_EPOCHS.key, semconv.EPOCH.key, 0),
    (semconv.ROW_SCHEDULED.key, KEYS["scheduled"], 1),
    (semconv.ROW_DRAFTED.key, KEYS["drafted"], 0),
)
"""A column, the attribute of a `kv.schedule` that it holds, and its default value; None for a required column."""
_IDS = 2**64
SHORT = Repr()
"""Shortens values of attributes in messages."""
SHORT.maxstring = SHORT.maxother = 60


class Unfit(ValueError):
    """The columns of a step do not fit together; the text says why.

    Attributes:
        key: the attribute that is wrong.
    """

    def __init__(self, key: str, text: str) -> None:
        super().__init__(f"{key} {text}")
        self.key = key


def apart(span_id: str, attributes: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The rows of a step: for each, the span id and the attributes of its `kv.schedule`. The values are not checked.

    Raises:
        Unfit: the columns do not fit together.
    """
    if not span_id:
        raise Unfit("span_id", "is empty")
    count = len(_array(semconv.ROW_REQUESTS.key, attributes.get(semconv.ROW_REQUESTS.key)))
    if not 0 < count <= MAX_ROWS:
        raise Unfit(semconv.ROW_REQUESTS.key, f"has {count} elements, but a step has 1 to {MAX_ROWS}")
    first = attributes.get(semconv.SEQUENCE.key)
    if type(first) is not int:
        raise Unfit(semconv.SEQUENCE.key, f"is {SHORT.repr(first)}, but must be int")
    common = {key: value for key, value in attributes.items() if key not in _COLUMNS}
    if len(common) * count > MAX_SHARED:
        raise Unfit(semconv.ROW_REQUESTS.key, f"has {count} elements, and each would share {len(common)} attributes")
    names: list[str] = [semconv.SEQUENCE.key]
    columns: list[Any] = [range(first, first + count)]
    for key, name, default in _PLAIN:
        column = attributes.get(key)
        if column is None and default is not None:
            common[name] = default
        else:
            names.append(name)
            columns.append(_column(key, column, count, count))
    if semconv.ROW_COUNTS.key in attributes:
        _add_blocks(names, columns, attributes, count)
    rows = [common | dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    for row in rows:
        if isinstance(request := row[semconv.REQUEST_ID.key], str):
            row[semconv.EXTERNAL_ID.key] = semconv.external_id(request)
    base = int(span_id, 16)
    return [(f"{(base + number) % _IDS:016x}", row) for number, row in enumerate(rows)]


def _array(key: str, values: Any) -> Any:
    if not isinstance(values, list | tuple):
        raise Unfit(key, f"is {SHORT.repr(values)}, but must be an array")
    return values


def _column(key: str, column: Any, length: int, count: int) -> Any:
    """A column, checked to have this length, of a step with `count` rows."""
    if len(_array(key, column)) != length:
        groups = "" if length == count else f" of {length // count} groups"
        raise Unfit(key, f"has {len(column)} elements, but the step has {count} rows{groups}")
    return column


def _add_blocks(names: list[str], columns: list[Any], attributes: Mapping[str, Any], count: int) -> None:
    """Add the block ids of each row; with several KV cache groups also the number of blocks in each."""
    groups = attributes.get(semconv.ROW_GROUPS.key, 1)
    if type(groups) is not int or not 1 <= groups <= MAX_GROUPS:
        raise Unfit(semconv.ROW_GROUPS.key, f"is {SHORT.repr(groups)}, but must be a number from 1 to {MAX_GROUPS}")
    counts = _column(semconv.ROW_COUNTS.key, attributes[semconv.ROW_COUNTS.key], count * groups, count)
    ids = _array(semconv.ROW_BLOCKS.key, attributes.get(semconv.ROW_BLOCKS.key, ()))
    if wrong := [each for each in counts if type(each) is not int or each < 0]:
        raise Unfit(semconv.ROW_COUNTS.key, f"holds {SHORT.repr(wrong[0])}, but must hold counts")
    if sum(counts) != len(ids):
        raise Unfit(semconv.ROW_BLOCKS.key, f"has {len(ids)} elements, but the rows have {sum(counts)} blocks")
    names.append(KEYS["blocks_ids"])
    if groups > 1:
        by_group = list(zip(*[iter(counts)] * groups, strict=True))
        names.append(KEYS["blocks_by_group"])
        counts = list(map(sum, by_group))
    columns.append(split(ids, counts))
    if groups > 1:
        columns.append(by_group)
