"""The block tables of a request, by KV cache group: which blocks a step names, and which of them are vLLM's null block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, islice

from kvtrail.dashboard.client import Row
from kvtrail.tracer.events.cache_groups import NULL_BLOCK
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.model.cause_words import group_name
from kvtrail.tracer.model.words import blocks, count, some

NO_BLOCK = "none"


def rows(step: Row, groups: Iterable[Row]) -> list[Row]:
    """A row for each KV cache group of a step that names blocks; none for any other step. `groups` are those that the engine
    declared, in order; with one group that nobody declared, its kind is not known."""
    kinds = [str(each.get("kind", "")) for each in groups]
    sizes = [each.get("block_size") for each in groups]
    starts = step["numbers"].get("group_starts")
    found = []
    for number, ids in enumerate(_by_group(step)):
        row: Row = {
            "KV cache group": group_name(number, kinds[number] if number < len(kinds) else ""),
            "Blocks": count(len(ids) - ids.count(NULL_BLOCK)),
            "Null blocks": count(ids.count(NULL_BLOCK)),
            "Block ids": blocks(block for block in ids if block != NULL_BLOCK) or NO_BLOCK,
        }
        if any(sizes):
            row["Tokens of a block"] = count(sizes[number]) if number < len(sizes) and sizes[number] else "not known"
        if starts:
            row["From token"] = count(starts[number]) if number < len(starts) else "not known"
        found.append(row)
    return found


def summary(step: Row) -> str:
    """How many blocks a step names, in a few words."""
    by_group = [*_by_group(step)]
    held = sum(len(ids) - ids.count(NULL_BLOCK) for ids in by_group)
    return some(held, "block") + (f" in {some(len(by_group), 'KV cache group')}" if len(by_group) > 1 else "")


def latest_allocation(timeline: Row) -> Row | None:
    """The latest allocation that names its blocks, if the model has several KV cache groups."""
    named = (step for step in reversed(timeline["steps"]) if step["name"] == Kind.ALLOC and len([*_by_group(step)]) > 1)
    return next(named, None)


def _by_group(step: Row) -> Iterator[list[int]]:
    """The ids that a step names, those of one group after those of another."""
    ids, counts = step["numbers"].get("blocks_ids"), step["numbers"].get("blocks_by_group")
    if step["foreign"] or not isinstance(ids, list | tuple):
        return
    ends = list(accumulate(counts if counts is not None else [len(ids)]))
    begins = [0, *ends]
    yield from (list(islice(ids, begin, end)) for begin, end in zip(begins, ends, strict=False))
