"""Infers from a recording which requests shared a prefix, and makes up prompts that share the same prefixes.

No prompt text is recorded, and none is needed: connectors see only how many tokens there are, and which are equal. What is
recorded decides how well the sharing is known:

- vLLM's hashes of full blocks (level `detailed`): each stands for the whole prefix up to the end of its block.
- the keys of chunks (any level, where the connector's are known): the same, for chunks.
- otherwise lengths only: a request that had a prefix in a cache at its first lookup is assumed to share it with an earlier
  request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import pairwise

from kvtrail.connector.simulate.redrive.recorded import RecordedRequest
from kvtrail.connector.simulate.scenario import Segment, beginning
from kvtrail.tracer.events.events import LoadPlan, Lookup, StorePlan


class Known(StrEnum):
    """How well a recording shows which requests share a prefix."""

    BLOCKS = "blocks"
    CHUNKS = "chunks"
    LENGTHS = "lengths"


def segments(
    requests: Mapping[str, RecordedRequest], *, block_size: int, chunk_size: int | None = None
) -> tuple[dict[str, tuple[tuple[Segment, ...], tuple[Segment, ...]]], Known]:
    """Each request's prompt and output as segments, in the order of arrival; and how well the sharing is known.

    Blocks that always follow each other become one segment, named after the first one.
    """
    known = Known.BLOCKS
    chains: Mapping[str, Sequence[str]] = {name: request.hashes or () for name, request in requests.items()}
    if any(request.hashes is None for request in requests.values()):
        known, chains = Known.CHUNKS, _of_chunks(requests, block_size, chunk_size or block_size)
    if not chains:
        return {name: (prompt, ()) for name, prompt in _guessed(requests).items()}, Known.LENGTHS
    after: dict[str, set[str]] = {}
    ends: Counter[str] = Counter()
    cuts: dict[str, set[int]] = {}
    """Where prompts end and outputs begin within a block."""
    for name, request in requests.items():
        chain = ("", *chains[name])
        for one, next_one in pairwise(chain):
            after.setdefault(one, set()).add(next_one)
        ends[chain[-1]] += 1
        full, part = divmod(request.length, block_size)
        if full < len(chain):
            ends[chain[full]] += 1
        if part and full + 1 < len(chain):
            ends[chain[full + 1]] += 1
            cuts.setdefault(chain[full + 1], set()).add(part)

    def parts(block: str, start: int, end: int) -> list[Segment]:
        """A part of a block that is cut: every request that has the block has it in the same parts."""
        within = pairwise(sorted({0, *cuts[block], block_size}))
        return [(f"{block}/{one}", other - one) for one, other in within if start <= one and other <= end]

    def runs(blocks: Sequence[str]) -> list[Segment]:
        joined: list[Segment] = []
        before = ""
        for block in blocks:
            if block in cuts:
                joined += parts(block, 0, block_size)
            elif joined and len(after.get(before, ())) == 1 and not ends.get(before):
                joined[-1] = (joined[-1][0], joined[-1][1] + block_size)
            else:
                joined.append((block, block_size))
            before = block
        return joined

    made: dict[str, tuple[tuple[Segment, ...], tuple[Segment, ...]]] = {}
    for name, request in requests.items():
        chain = tuple(chains[name])
        full, part = divmod(request.length, block_size)
        if part and full < len(chain):
            prompt = [*runs(chain[:full]), *parts(chain[full], 0, part)]
            output = [*parts(chain[full], part, block_size), *runs(chain[full + 1 :])]
        else:
            known_blocks = min(full, len(chain))
            prompt = [*runs(chain[:known_blocks]), *_rest(name, request.length - known_blocks * block_size)]
            made_up = min(request.max_tokens, -request.length % block_size)
            output = [*([(f"{name}/output", made_up)] if made_up else []), *runs(chain[full:])]
        made[name] = (tuple(prompt), tuple(output))
    return made, known


def _of_chunks(requests: Mapping[str, RecordedRequest], block_size: int, chunk_size: int) -> dict[str, tuple[str, ...]]:
    """A name for each full block of each request, as far as keys of chunks are recorded; empty where none are. Each key
    stands for a whole prefix."""
    keys: dict[str, dict[int, str]] = {name: {} for name in requests}
    for name, request in requests.items():
        for event in request.events:
            if isinstance(event, Lookup | LoadPlan | StorePlan) and event.chunk_keys:
                start = 0 if isinstance(event, Lookup) else event.start
                if start is not None:
                    keys[name].update(enumerate(event.chunk_keys, start=start // chunk_size))
    before = {key: of[chunk - 1] for of in keys.values() for chunk, key in of.items() if chunk - 1 in of}
    for of in keys.values():  # the key before it in one request comes before it in every request
        for chunk in range(max(of, default=0), 0, -1):
            if chunk - 1 not in of and (key := before.get(of.get(chunk, ""))) is not None:
                of[chunk - 1] = key
    if not any(keys.values()):
        return {}
    per_chunk = chunk_size // block_size
    named: dict[str, tuple[str, ...]] = {}
    for name, request in requests.items():
        blocks = max(request.length // block_size, per_chunk * (max(keys[name], default=-1) + 1))
        places = (divmod(block, per_chunk) for block in range(blocks))
        named[name] = tuple(f"{keys[name].get(chunk, name)}/{chunk}/{within}" for chunk, within in places)
    return named


def _guessed(requests: Mapping[str, RecordedRequest]) -> dict[str, tuple[Segment, ...]]:
    """Prompts with the sharing that lengths suggest.

    What vLLM's cache still held was used recently; what only the connector held was not. So the one is assumed to be shared
    with the family of requests that was used last, the other with the family that was unused for longest.
    """
    made: dict[str, tuple[Segment, ...]] = {}
    latest: dict[str, str] = {}
    """The latest request of each family, by the family's first request; the family that was used last comes last."""
    for name, request in requests.items():
        cached = min(request.cached, request.length)
        able = [family for family, member in latest.items() if cached and requests[member].length >= cached]
        family = (able[-1] if request.cached_by_vllm else able[0]) if able else name
        shared = beginning(made[latest.pop(family)], cached) if able else ()
        made[name] = (*shared, *_rest(name, request.length - sum(count for _, count in shared)))
        latest[family] = name
    return made


def _rest(name: str, tokens: int) -> list[Segment]:
    return [(f"{name}/rest", tokens)] if tokens > 0 else []
