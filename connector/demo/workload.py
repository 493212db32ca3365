"""The demo's workload: prompts that share prefixes and that exceed the block pool."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvtrail.connector.simulate.tiny_model import VOCABULARY


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """One request: its id, its prompt as token ids, the number of tokens to generate, and the step after which it arrives."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    arrives_at_step: int = 0


def shared_prefixes(*, seed: int = 0, prefixes: int = 3, requests: int = 24) -> list[DemoRequest]:
    """Requests that begin with one of a few prefixes of 512 tokens, arriving faster than they can be served."""
    rng = random.Random(seed)
    heads = [_tokens(rng, 512) for _ in range(prefixes)]
    return [
        DemoRequest(
            f"demo-{n:02d}", heads[n % prefixes] + _tokens(rng, rng.randrange(60, 300)), 40, arrives_at_step=4 * n
        )
        for n in range(requests)
    ]


def stale_lookup(*, seed: int = 0) -> list[DemoRequest]:
    """The workload of LMCache #2158: long prompts all at once, so that one is preempted in the middle of its chunked prefill,
    finds its blocks again in the prefix cache, and waits several scheduling steps to be admitted."""
    rng = random.Random(seed)
    return [DemoRequest(f"bug-{n:02d}", _tokens(rng, rng.randrange(700, 800)), 40) for n in range(8)]


def run(
    llm: Any, jobs: Sequence[DemoRequest], progress: Callable[[int], None] = lambda done: None
) -> dict[str, list[int]]:
    """Run the jobs to their ends with greedy sampling; returns the generated tokens by job id."""
    from vllm import SamplingParams

    engine = llm.llm_engine
    waiting = sorted(jobs, key=lambda job: job.arrives_at_step)[::-1]  # the next one last
    tokens: dict[str, list[int]] = {}
    step = 0
    while waiting or engine.has_unfinished_requests():
        while waiting and (waiting[-1].arrives_at_step <= step or not engine.has_unfinished_requests()):
            job = waiting.pop()
            params = SamplingParams(temperature=0, max_tokens=job.max_tokens, ignore_eos=True, detokenize=False)
            engine.add_request(job.id, {"prompt_token_ids": list(job.prompt)}, params)
        for output in engine.step():
            if output.finished:
                tokens[output.request_id] = list(output.outputs[0].token_ids)
                progress(len(tokens))
        step += 1
    return tokens


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3, VOCABULARY) for _ in range(count))
