"""Prompts with the recorded prefix sharing, and no text: who begins with the same tokens as whom.

At level `detailed` a recording holds what vLLM's hashes of full blocks begin with: blocks of the same hash end the same
prefix. Elsewhere only lengths are known: a request that found something in a cache shares that much with an earlier one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvtrail.connector.simulate.scenario import Segment


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one request's tokens.

    Attributes:
        length: of its prompt.
        output: how many tokens it generated.
        hashes: of its full blocks, output included; None where they were not recorded.
        found: the longest prefix that a cache, vLLM's or the connector's, held at its first lookup.
        is_local: vLLM's own cache held all of it.
    """

    length: int
    output: int
    hashes: tuple[str, ...] | None
    found: int
    is_local: bool


def prompts(
    requests: Mapping[str, Known], *, block_size: int
) -> dict[str, tuple[tuple[Segment, ...], tuple[Segment, ...]]]:
    """Each request's prompt and output as segments, in the order of their arrival."""
    if all(known.hashes is not None for known in requests.values()):
        return _by_hashes(requests, block_size)
    return {name: (prompt, ()) for name, prompt in _by_lengths(requests).items()}


def _by_hashes(
    requests: Mapping[str, Known], block_size: int
) -> dict[str, tuple[tuple[Segment, ...], tuple[Segment, ...]]]:
    """A hash stands for a whole prefix, so equal hashes are the same path from the beginning. Blocks that always follow each
    other become one segment, named for the first of them."""
    after: dict[str, set[str]] = {}
    ends: Counter[str] = Counter()
    for known in requests.values():
        chain = ("", *(known.hashes or ()))
        for one, next_one in pairwise(chain):
            after.setdefault(one, set()).add(next_one)
        ends[chain[-1]] += 1
        prompt_end = known.length // block_size
        if prompt_end < len(chain):
            ends[chain[prompt_end]] += 1
    made: dict[str, tuple[tuple[Segment, ...], tuple[Segment, ...]]] = {}
    for name, known in requests.items():
        hashes = known.hashes or ()
        full = min(known.length // block_size, len(hashes))
        prompt = [*_runs(hashes[:full], after, ends, block_size), *_rest(name, known.length - full * block_size)]
        # The block in which the prompt ends and the output begins is drawn as the prompt's rest, and then as the output's.
        made_up = min(known.output, -known.length % block_size)
        output = [(f"{name}/output", made_up)] if made_up else []
        output += _runs(hashes[-(-known.length // block_size) :], after, ends, block_size)
        made[name] = (tuple(prompt), tuple(output))
    return made


def _runs(
    hashes: Sequence[str], after: Mapping[str, set[str]], ends: Mapping[str, int], block_size: int
) -> list[Segment]:
    runs: list[tuple[str, int]] = []
    before = ""
    for block_hash in hashes:
        alone = len(after.get(before, ())) == 1 and not ends.get(before)
        if runs and alone:
            runs[-1] = (runs[-1][0], runs[-1][1] + block_size)
        else:
            runs.append((block_hash, block_size))
        before = block_hash
    return runs


def _by_lengths(requests: Mapping[str, Known]) -> dict[str, tuple[Segment, ...]]:
    """What vLLM's cache still held was used lately; what only the connector held was not. So the one is taken to be shared
    with the family of requests that was used last, the other with the one that was not used for longest."""
    made: dict[str, tuple[Segment, ...]] = {}
    latest: dict[str, str] = {}
    """Of each family, named for its first request, the latest; the family that was used last stands last."""
    for name, known in requests.items():
        found = min(known.found, known.length)
        able = [family for family, member in latest.items() if found and requests[member].length >= found]
        family = (able[-1] if known.is_local else able[0]) if able else name
        shared = _first(made[latest.pop(family)], found) if able else ()
        made[name] = (*shared, *_rest(name, known.length - sum(count for _, count in shared)))
        latest[family] = name
    return made


def _first(segments: Sequence[Segment], count: int) -> tuple[Segment, ...]:
    taken: list[Segment] = []
    for seed, length in segments:
        if count > 0:
            taken.append((seed, min(length, count)))
            count -= length
    return tuple(taken)


def _rest(name: str, count: int) -> list[Segment]:
    return [(f"{name}/rest", count)] if count > 0 else []
