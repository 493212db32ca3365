"""Makes up prompts that share the same prefixes as the recorded ones.

No prompt text is recorded, and none is needed: connectors see only how many tokens there are, and which are equal. vLLM's
hashes of full blocks say that: each stands for the whole prefix up to the end of its block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from kvtrail.connector.simulate.redrive.recorded import RecordedRequest
from kvtrail.connector.simulate.scenario import Segment


def segments(
    requests: Mapping[str, RecordedRequest], *, block_size: int
) -> dict[str, tuple[tuple[Segment, ...], tuple[Segment, ...]]]:
    """Each request's prompt and output as segments, in the order of arrival. A request without hashes shares nothing.

    Blocks that always follow each other become one segment, named after the first one.
    """
    chains: Mapping[str, Sequence[str]] = {name: request.hashes or () for name, request in requests.items()}
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
    return made


def _rest(name: str, tokens: int) -> list[Segment]:
    return [(f"{name}/rest", tokens)] if tokens > 0 else []
