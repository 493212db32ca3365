"""What a scenario has besides its requests, in sentences: the pool, vLLM's settings, aborts, resets, how transfers behave."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrail.connector.simulate.scenario import Abort, CachesReset, Scenario, When
from kvtrail.tracer.model.words import count, some

_UNTIL = {
    When.MATCHED: "waits and has matched",
    When.DEFERRED: "waits and is to be looked up again later",
    When.LOADING: "loads",
    When.PREEMPTED: "is preempted",
    When.FAILED: "has a load between steps that failed",
    When.FAILED_WITHIN: "has a load within a step that failed",
}
"""Of a request, for an abort or a reset that waits until it does."""


def circumstances(of: Scenario) -> Iterator[str]:
    """The sentences."""
    yield f"{some(of.num_blocks, 'KV block')} of {some(of.block_size, 'token')}, the null block included."
    if of.groups:
        kinds = (f"{each.kind} of {each.window} tokens" if each.window else each.kind for each in of.groups)
        yield f"KV cache groups: {', '.join(kinds)}."
    if of.settings:
        yield f"vLLM's settings: {', '.join(f'{name}={value}' for name, value in of.settings.items())}."
    if of.drafts:
        yield f"Each step drafts {some(of.drafts, 'speculative token')}; a random part of them is rejected."
    if not of.recompute:
        yield "A request with a load that failed ends (kv_load_failure_policy=fail)."
    yield from map(_abort, of.aborts)
    yield from map(_reset, of.resets)
    workers = of.workers
    yield f"Transfers between steps end within {some(workers.latest_steps, 'step')}, in any order."
    if workers.load_failures:
        yield f"Of the loads {100 * workers.load_failures:.0f} % fail, as a random number has it."
    for load, block in workers.fails:
        request, _, number = load.rpartition("/")
        yield f"Load {count(int(number) + 1)} of {request} fails from its block {block} on."


def _abort(of: Abort) -> str:
    if of.when is None:
        return f"{of.id} is aborted before step {of.at_step}."
    return f"{of.id} is aborted as soon as it {_UNTIL[of.when]}, from step {of.at_step} on."


def _reset(of: CachesReset) -> str:
    caches = " and ".join(
        name
        for name, is_reset in (("vLLM's prefix cache", of.prefix_cache), ("the connector's cache", of.connector))
        if is_reset
    )
    at = f"before step {of.at_step}"
    if of.when is not None:
        at = f"as soon as some request {_UNTIL[of.when]}, from step {of.at_step} on"
    preempts = ", and preempts running requests for it" if of.running and of.prefix_cache else ""
    return f"Somebody resets {caches} {at}{preempts}."
