"""The words on the pages and their meanings, for every help text.

`docs/concepts.md` has the same list; `python -m kvtrail.dashboard.content.glossary` prints it.
"""

from __future__ import annotations

TERMS = {
    # The tokens of a request.
    "prompt": "Tokens of the request when it arrived.",
    "asked again": "A preempted request looks up its tokens again: its prompt, and its output so far.",
    "from vLLM's cache": "Tokens of the sum that vLLM's own prefix cache held.",
    "loaded of the sum": "Tokens of the sum that the connector loaded, so that they need not be computed.",
    "computed of the sum": "The rest of the sum, which vLLM computes.",
    "cause": "Why a token was reused or computed. If several causes hold for a block, the first in docs/causes.md counts.",
    "before": "In the earlier range: by the minute, or for each request.",
    "after": "In the later range: by the minute, or for each request.",
    "share of the change": "What these requests add to the change of the whole; negative where theirs went the other way.",
    "tenant": "Requests that may share KV: those with the same cache salt and adapter. kvtrail knows only their digest.",
    "wasted tokens": "Tokens that were computed although a cache of the engine holds or had held them.",
    "share of the waste": "The group's part of all tokens that were computed again in the range, with the filters in use.",
    "wasted prefill": "The time that these tokens take at the engine's own measured prefill rate.",
    "admission": "A lookup and allocation after which a request runs; again after each preemption.",
    "lost from token": "The first token of the first block that was lost: what comes before it was reused.",
    "output tokens": "Tokens that the request has generated so far, by what is recorded.",
    "recomputed tokens": "Tokens computed before a preemption and again after it.",
    "total": "Tokens of the request: its prompt, and its output so far.",
    "computed tokens": "Tokens that vLLM has KV for, from its own prefix cache, from earlier steps, or loaded.",
    "matched tokens": "Tokens of the prefix that the connector's store held, by the last lookup.",
    "returned tokens": "Tokens that the connector offered to load, by the last lookup.",
    "allocated tokens": "Tokens for which the scheduler allocated blocks to load into.",
    "loaded tokens": "Tokens copied from the connector's store, in its first run and after each preemption.",
    "stored tokens": "Tokens copied into the connector's store, in its first run and after each preemption.",
    "scheduled tokens": "Tokens that the latest step runs.",
    "loads": "How often blocks were allocated to load tokens into.",
    "rejected drafts": "Speculative tokens that the model rejected.",
    "refused answers": "Answers of the connector that broke the lookup contract and that the guard replaced with 0.",
    "blocks checked": "KV blocks that workers compared with the reference of their hashes; each check counts.",
    "wrong blocks": "Compared blocks with bytes that differ from the reference.",
    "status": "Where the request is: queued, admitted, loading, running, preempted, or how it ended.",
    "duration": "From the request's arrival to its end, or up to now.",
    "first token": "From the request's arrival to its first token, where the step after its prompt is recorded.",
    "took": "How long the call itself lasted.",
    "to next": "Time to the next event of the request. If it is long, the request waited or was computed.",
    "lookup": "Before it admits a request, the scheduler asks the connector how many more tokens it can load.",
    "epoch": "How often the request has been preempted: its first run is epoch 0.",
    "preemption": "The scheduler preempted the request; its computed tokens were discarded.",
    "witness": "An event that proves a finding.",
    # Findings.
    "finding": "The record of one drift between the connector and vLLM, however often it recurs.",
    "requests with it": "How many requests had a finding of the rule.",
    "severity": "The worst that a finding of this rule can do.",
    "impact": "What happened to the requests with the finding, by what spans show.",
    "healed": "The guard replaced a wrong answer before the scheduler used it, or had wrong blocks computed again.",
    "known": "new: first seen since the last deploy of the engines that have it. known: the file of known findings names"
    " it, and alerts leave it out.",
    "first seen": "Over all time, whatever the range of the page.",
    "verdict": "ok: all checks agree. drift: events contradict each other. unknown: the events cannot decide it. How the"
    " request ended is its outcome.",
    "trend": "Findings over the page's range, in equal steps; the newest are at the right.",
    "outcome": "How the request ended: finished, failed, lost with its engine, or still running.",
    # Savings.
    "prefill saved": "Time that prefill of the spared tokens would have taken, at the engine's own measured rate.",
    "net time": "Prefill saved, less the time in loads (or waiting for them, if that was longer) and in stores.",
    "hit rate": "The share of admitted requests' tokens that the connector was to load.",
    "vLLM's own hit rate": "The share of the same tokens that vLLM's prefix cache held. vLLM asks it first.",
    "spared tokens": "Tokens that were loaded and therefore not computed.",
    "held, yet computed": "Tokens that were computed although the store held them.",
    "unused lookups": "Lookups that promised tokens without an allocation for them.",
    "waited for KV": "Time from the allocation to the end of an asynchronous load, and time lost to 'ask me later'. That of a"
    " single request has its copies within a step as well.",
    "more memory": "The estimated share of the tokens beyond vLLM's own cache that a store of another size would have given,"
    " from each chunk's reuse distance.",
    "bandwidth": "Bytes per second that one rank copies, while it copies.",
    # Engines and recorders.
    "engine": "One vLLM engine, by its pod, its instance, or its service and host.",
    "service": "The `service.name` that the engine's recorders send.",
    "state": "running: it sends. contact lost: nothing comes. died: it ended with an error. drained: it ended cleanly.",
    "recorder": "The part of kvtrail in one process of an engine that records events and sends spans.",
    "lag": "From the end of the latest event, by the recorder's clock, to its arrival, by the tracer's.",
    "received": "Events that have arrived since the tracer started.",
    "open at its end": "Requests that were open when the engine ended: those that were lost with it, and one that raised.",
    "dropped": "Events that a recorder dropped for lack of room.",
    "gaps": "Events that have not arrived, by gaps in their numbers.",
    "requests": "Requests that began in the range, by how they ended.",
    "hand-off": "KV that one engine computed and another one reads to go on with: prefill here, decode there.",
    "lease expired": "Nobody reported in time that the blocks were read, so the engine that prefilled gave them back.",
    "mean wait": "From the arrival of a request at the engine that decodes to the end of its load, by that engine's clock.",
    "kept for": "Blocks of ended requests that the engine keeps until another one has read them.",
    "oldest": "Since the request of the oldest ended, by the engine's own clock.",
    "open requests": "Requests that have begun but not ended.",
}


def as_markdown() -> str:
    """The list as docs/concepts.md has it."""
    return "\n".join(["| term | meaning |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in TERMS.items())])


if __name__ == "__main__":
    print(as_markdown())
