"""The words on the pages and what they mean: the one place behind every help text.

`docs/concepts.md` lists the same; `python -m kvtrail.dashboard.content.glossary` prints that list.
"""

from __future__ import annotations

TERMS = {
    # What a request's tokens are.
    "prompt": "Tokens of the request when it arrived.",
    "asked again": "A preempted request asks again: for its prompt, and the output that it had by then.",
    "from vLLM's cache": "Tokens of the sum whose KV vLLM's own prefix cache still held.",
    "loaded of the sum": "Tokens of the sum whose KV the connector loaded, so that they need not be computed.",
    "computed of the sum": "The rest of the sum: what vLLM computes itself.",
    "cause": "Why a token was reused or computed. Of several that are true of a block, the first in docs/causes.md counts.",
    "tenant": "Whose prompts may share KV: requests with one cache salt and adapter. kvtrail knows only a digest of these.",
    "output tokens": "Tokens that the request has generated so far, as far as is recorded.",
    "recomputed tokens": "Tokens that had been computed before a preemption, and were computed again after it.",
    "total": "Tokens of the request: its prompt, and its output so far.",
    "computed tokens": "Tokens that vLLM has KV for, from its own prefix cache, from earlier steps, or loaded.",
    "matched tokens": "Tokens of the prefix that the connector's store held, by the last lookup.",
    "returned tokens": "Tokens that the connector said it could load, by the last lookup.",
    "allocated tokens": "Tokens for which the scheduler gave the request blocks to load into.",
    "loaded tokens": "Tokens copied from the connector's store, over all epochs.",
    "stored tokens": "Tokens copied into the connector's store, over all epochs.",
    "scheduled tokens": "Tokens that the latest step runs.",
    "loads": "How often the request was given blocks to load tokens into.",
    "rejected drafts": "Speculative tokens that the model did not confirm.",
    "refused answers": "Answers of the connector that break the lookup contract, and that the guard replaced with 0.",
    "blocks checked": "KV blocks that workers compared with what was computed under their hashes; each time counts.",
    "wrong blocks": "Of the blocks checked, those that held something else.",
    "status": "Where the request is: queued, admitted, loading, running, preempted, or how it ended.",
    "duration": "From the request's arrival to its end, or up to now.",
    "took": "How long the call itself lasted.",
    "to next": "Time to the next event of the request: where it is long, the request waited or was computed.",
    "lookup": "Before it admits a request, the scheduler asks the connector how many more tokens it can load.",
    "epoch": "How often the request has been preempted: its first run is epoch 0.",
    "preemption": "The scheduler took a request off the engine; what was computed of it is void.",
    "witness": "An event that proves a finding.",
    # What was found.
    "finding": "One contradiction between what the connector and vLLM said, however often it was repeated.",
    "requests with it": "How many requests had a finding of the rule.",
    "could": "What a finding of this rule can do at worst.",
    "did": "What became of the requests that had the finding, as far as spans show.",
    "healed": "The guard replaced a wrong answer before the scheduler used it, or had wrong blocks computed again.",
    "verdict": "ok: what was checked agrees, which says nothing of how the request ended: its outcome does. drift: an event"
    " contradicts another. unknown: neither can be said.",
    "trend": "Findings over the range that the page shows, in equal steps; the newest are at the right.",
    "outcome": "What became of the request: finished, failed, lost with its engine, or still running.",
    # What the offload is worth.
    "prefill saved": "Time that prefill would have taken for the tokens spared, at the engine's own measured rate.",
    "net time": "Prefill saved, less the time in loads (or waiting for them, if that was longer) and in stores.",
    "hit rate": "The share of the tokens of admitted requests that the connector was to provide.",
    "vLLM's own hit rate": "The share of the same tokens that vLLM's prefix cache held; it is asked first.",
    "spared tokens": "Tokens that were loaded and therefore not computed.",
    "held, yet computed": "Tokens that the store held and that were computed all the same.",
    "unused lookups": "Lookups that promised tokens which no allocation took.",
    "waited for KV": "Time from the allocation to the end of an asynchronous load, and time lost to 'ask me later'.",
    "more memory": "The share of the tokens beyond vLLM's own cache that a store of another size would have given, reckoned"
    " from how long ago each chunk was used last.",
    "bandwidth": "Bytes that one rank copies in a second, while it copies.",
    # Who sends what.
    "engine": "One vLLM engine, by the name that people know: its pod, its instance, or its service and host.",
    "service": "The `service.name` that the engine's recorders send.",
    "state": "running: it sends. silent: nothing comes. died: it ended of an error. drained: it ended with a goodbye.",
    "recorder": "What records in one process of an engine and sends spans.",
    "lag": "From the end of the latest event, by the recorder's clock, to its arrival, by the tracer's.",
    "received": "Events that have arrived since the tracer started.",
    "lost requests": "Requests that were open when the engine ended.",
    "dropped": "Events that a recorder had no room for.",
    "gaps": "Events that have not arrived, by their numbers.",
    "admitted": "Requests that were given blocks; one that comes back after a preemption counts again.",
    "open requests": "Requests that have begun and not ended.",
}


def as_markdown() -> str:
    """The list as docs/concepts.md has it."""
    return "\n".join(["| term | meaning |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in TERMS.items())])


if __name__ == "__main__":
    print(as_markdown())
