"""The terms on the pages and their meanings, for every help text."""

from __future__ import annotations

TERMS = {
    # The tokens of a request.
    "prompt": "Tokens of the request when it arrived.",
    "cause": "Why a token was reused or computed. If several causes hold for a block, the first in docs/causes.md counts.",
    "before": "The amount per minute in the earlier range.",
    "after": "The amount per minute in the later range.",
    "share of the change": "The part of the change that these requests account for; negative if theirs went the other way.",
    "share of the waste": "The group's part of all tokens that were computed again in the range, with the filters in use.",
    "wasted prefill": "The time that these tokens take at the engine's own measured prefill rate.",
    "admission": "A lookup and allocation after which a request runs; again after each preemption.",
    "lost from token": "The first token of the first block that was lost: the tokens before it were reused.",
    "recomputed tokens": "Tokens computed before a preemption and again after it.",
    "total": "Tokens of the request: its prompt, and its output so far.",
    "computed tokens": "Tokens that vLLM has KV for, from its own prefix cache, from earlier steps, or loaded.",
    "matched tokens": "Tokens of the prefix that the connector's store held, by the last lookup.",
    "loaded tokens": "Tokens copied from the connector's store, in its first run and after each preemption.",
    "stored tokens": "Tokens copied into the connector's store, in its first run and after each preemption.",
    "status": "The state of the request: queued, admitted, loading, running, preempted, or its end.",
    "duration": "From the request's arrival to its end, or up to now.",
    "first token": "From the request's arrival to its first token, if the step after its prompt is recorded.",
    "took": "How long the call itself lasted.",
    "preemption": "The scheduler preempted the request; its computed tokens were discarded.",
    # Findings.
    "finding": "The record of one drift between the connector and vLLM, however often it recurs.",
    "requests with it": "The number of requests with a finding of the rule.",
    "severity": "The worst possible effect of a finding of this rule.",
    "impact": "What happened to the requests with the finding, as far as spans show.",
    "known": "The file of known findings names it, and alerts leave it out.",
    "first seen": "Over all time, whatever the range of the page.",
    "verdict": "ok: all checks agree. drift: events contradict each other. unknown: the events cannot decide it. How the"
    " request ended is its outcome.",
    "outcome": "How the request ended: finished, failed, lost with its engine, or still running.",
    # Savings.
    "prefill saved": "Time that prefill of the spared tokens would have taken, at the engine's own measured rate.",
    "hit rate": "The share of admitted requests' tokens that the connector was to load.",
    "vLLM's own hit rate": "The share of the same tokens that vLLM's prefix cache held. vLLM asks it first.",
    "spared tokens": "Tokens that were loaded and therefore not computed.",
    "held, yet computed": "Tokens that were computed although the store held them.",
    "unused lookups": "Lookups that promised tokens without an allocation for them.",
    "waited for KV": "Time from the allocation to the end of an asynchronous load, and time lost to 'ask me later'. For a"
    " single request, it includes copies within a step as well.",
    "more memory": "The estimated share of the tokens beyond vLLM's own cache that a store of another size would have given,"
    " from each chunk's reuse distance.",
    "bandwidth": "Bytes per second that one rank copies, while it copies.",
    # Engines and recorders.
    "engine": "One vLLM engine, by its pod, its instance, or its service and host.",
    "state": "running: it sends spans. contact lost: it stopped. died: it ended with an error. drained: it ended cleanly.",
    "recorder": "The part of kvtrail in one process of an engine that records events and sends spans.",
    "lag": "From the end of the latest event, by the recorder's clock, to its arrival, by the tracer's.",
    "open at its end": "Requests that were open when the engine ended, including one whose call raised.",
    "dropped": "Events that a recorder dropped, such as when its queue was full.",
    "gaps": "Missing events, found by gaps in their sequence numbers.",
    "requests": "Requests that began in the range, by how they ended.",
    "hand-off": "KV that one engine computed (prefill) and another one reads to continue (decode).",
    "lease expired": "No engine reported in time that it had read the blocks, so the prefill engine freed them.",
    "mean wait": "From the arrival of a request at the engine that decodes to the end of its load, by that engine's clock.",
    "kept for": "Blocks of ended requests that the engine keeps until another one has read them.",
    "oldest": "Time since the request of the oldest hand-off ended, by the engine's own clock.",
    "open requests": "Requests that have begun but not ended.",
}
