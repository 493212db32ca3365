"""What every connector must do: lookup, allocation, load, store, preemption, abort, reset, end."""

from __future__ import annotations

from kvtrail.connector.simulate.conformance.requirement import Requirement

_BASE = "vLLM 0.32, `KVConnectorBase_V1"
_SCHEDULER = "vLLM 0.32, `Scheduler"

CORE = (
    Requirement(
        "core.lookup.beyond-computed",
        "A lookup's answer counts only tokens beyond those that vLLM has computed, and no more than the request has.",
        f"{_BASE}.get_num_new_matched_tokens`: “tokens that can be loaded from the external KV cache beyond what is already"
        " computed”",
        ("over-report", "stale-lookup"),
        ("lookup/beyond-computed",),
    ),
    Requirement(
        "core.lookup.leaves-a-token",
        "A hit that is loaded within the step leaves at least the request's last token to be computed.",
        f"{_SCHEDULER}.schedule`, which asserts that an admitted request has new tokens to run",
        ("full-hit",),
        ("lookup/to-the-end-within-step",),
    ),
    Requirement(
        "core.lookup.only-stored",
        "A hit claims only a prefix that some request has computed, and that the store holds at the moment of the call.",
        f"{_BASE}.get_num_new_matched_tokens`: “only consider the largest prefix of prompt-tokens for which KV cache is"
        " actually available at the time of the call”",
        ("hits", "phantom-hit"),
        ("lookup/hit",),
    ),
    Requirement(
        "core.lookup.free-of-side-effects",
        "A request may be looked up many times before it is admitted, and nothing follows from that: neither a smaller answer"
        " nor another store.",
        "vLLM 0.32, module `kv_connector.v1.base`: “Might be called multiple times for a given request and should be"
        " side-effect free”",
        ("retried-lookup", "stale-lookup", "under-report", "hits"),
        ("lookup/hit-again",),
    ),
    Requirement(
        "core.lookup.after-preemption",
        "After a preemption a lookup is answered by what vLLM has computed by then, and offers no less than the store holds.",
        "LMCache #2158 (https://github.com/LMCache/LMCache/issues/2158) and LMCache #1969"
        " (https://github.com/LMCache/LMCache/issues/1969)",
        ("over-report", "stale-lookup", "under-report"),
        ("lookup/hit-after-preemption",),
    ),
    Requirement(
        "core.lookup.identity",
        "The same tokens with another cache salt or another adapter are another prefix.",
        "vLLM 0.32, `generate_block_hash_extra_keys`, which mixes both into a block's hash",
        ("hits", "key-collision"),
        ("lookup/other-identity",),
    ),
    Requirement(
        "core.lookup.after-eviction",
        "What the store has evicted is not offered.",
        f"{_BASE}.get_num_new_matched_tokens`: “If the cache cannot be loaded for some tokens (e.g., due to connectivity"
        " issues or eviction), those tokens must not be taken into account”",
        ("phantom-hit",),
        ("lookup/after-eviction",),
    ),
    Requirement(
        "core.allocation.as-offered",
        "What is allocated for a load is what the last lookup offered.",
        f"{_SCHEDULER}.schedule`, which hands the lookup's answer on to `update_state_after_alloc`",
        ("alloc-mismatch",),
        ("alloc/external",),
    ),
    Requirement(
        "core.allocation.nothing-to-load",
        "When 0 tokens are allocated nothing is loaded, whatever was offered before and however many blocks are named.",
        f"{_BASE}.update_state_after_alloc`: “Decide whether to load based on `num_external_tokens`, not on whether `blocks`"
        " is empty”",
        ("unselected-load", "bytes"),
        ("alloc/answer-discarded",),
    ),
    Requirement(
        "core.allocation.after-retries",
        "After several lookups the load is that of the last one.",
        f"{_SCHEDULER}.schedule`, which looks a request up again in each step in which no blocks could be given to it",
        ("load-range", "plans", "bytes"),
        ("alloc/after-retry",),
    ),
    Requirement(
        "core.load.contents",
        "A request reads the KV that was computed for its prefix, in each layer and each slot.",
        f"{_BASE}.start_load_kv` and `wait_for_layer_load`",
        ("bytes", "byte-drift"),
        ("bytes/loads",),
    ),
    Requirement(
        "core.load.whole",
        "A load brings all tokens that were allocated for it, and none beyond.",
        f"{_SCHEDULER}.schedule`, which counts all of them as computed",
        ("plans", "short-load", "unread-load", "load-range", "bytes"),
        ("alloc/external",),
    ),
    Requirement(
        "core.load.own-blocks",
        "What is copied goes into and comes from blocks that are the request's at that moment, at their places.",
        "vLLM 0.32, `SchedulerOutput`: a new or resumed request carries its whole block table, others what is added;"
        " vLLM #52170 (https://github.com/vllm-project/vllm/issues/52170)",
        ("plan-blocks", "stale-block", "block-shortage", "byte-rot", "bytes"),
        ("load/planned", "store/planned", "alloc/external"),
    ),
    Requirement(
        "core.load.in-time",
        "What a load brings is in place before the step reads it.",
        f"{_BASE}.wait_for_layer_load`: “Block until the KV for a specific layer is loaded into vLLM's paged buffer”",
        ("byte-early", "bytes"),
        ("step/after-load",),
    ),
    Requirement(
        "core.load.kept-until-read",
        "What a lookup has found stays in the store until it is loaded.",
        "vLLM #42289 (https://github.com/vllm-project/vllm/pull/42289)",
        ("evicted-hit", "refetched-chunk"),
        ("store/evicted",),
    ),
    Requirement(
        "core.load.goes-on-behind",
        "The request goes on at the token behind its load.",
        f"{_SCHEDULER}._update_waiting_for_remote_kv`",
        ("resume-point",),
        ("step/after-load",),
    ),
    Requirement(
        "core.store.computed",
        "Only KV that is computed, or will be when the step has run, is stored.",
        "LMCache #886 (https://github.com/LMCache/LMCache/issues/886)",
        ("store-uncomputed", "bytes"),
        ("store/planned", "lookup/hit"),
    ),
    Requirement(
        "core.store.drafts",
        "Speculative tokens are not stored before they are accepted.",
        f"{_SCHEDULER}.update_from_output`, which takes rejected tokens back",
        ("store-uncomputed",),
        ("store/with-drafts",),
    ),
    Requirement(
        "core.store.no-gap",
        "What is stored of a request has no hole, and does not end before its prompt does.",
        "vLLM #47235 (https://github.com/vllm-project/vllm/pull/47235) and vLLM #53498"
        " (https://github.com/vllm-project/vllm/issues/53498)",
        ("store-gap", "store-short"),
        ("store/planned",),
    ),
    Requirement(
        "core.store.keys",
        "A prefix has one key, and no other prefix has it.",
        "LMCache #2511 (https://github.com/LMCache/LMCache/issues/2511)",
        ("key-mismatch", "key-collision", "bytes"),
        ("store/planned", "bytes/loads"),
    ),
    Requirement(
        "core.store.room",
        "To make room, a store evicts neither the head of the prompt that it stores, nor what is still being stored.",
        "pegaflow #396 (https://github.com/novitalabs/pegaflow/issues/396) and LMCache #5263"
        " (https://github.com/LMCache/LMCache/issues/5263)",
        ("self-eviction", "evicted-store"),
        ("store/evicted",),
    ),
    Requirement(
        "core.store.as-large",
        "A store that was full holds as much in the end as it did when it was new, and its workers give back what it evicts.",
        f"{_BASE}.request_finished`: whatever a request has reserved is given back then or when its transfers end",
        ("rest/room",),
        ("end/all",),
    ),
    Requirement(
        "core.store.not-under-load",
        "Blocks into which a load is under way are not stored.",
        "vLLM #35092 (https://github.com/vllm-project/vllm/pull/35092) and vLLM #46014"
        " (https://github.com/vllm-project/vllm/issues/46014)",
        ("store-under-load", "load-store-overlap"),
        ("load/planned",),
    ),
    Requirement(
        "core.store.read-before-reuse",
        "Blocks that are being stored are read before another request writes to them: after their request has ended, and"
        " after it was preempted.",
        f"{_BASE}.handle_preemptions` and `request_finished`: “True if the request is being saved/sent asynchronously and"
        " blocks should not be freed”",
        ("block-reuse", "bytes"),
        ("store/open-at-end", "store/open-at-preemption", "store/unseen-at-preemption"),
    ),
    Requirement(
        "core.store.same-prefix-at-once",
        "Requests that compute the same prefix at the same time neither spoil nor lose what either of them stores.",
        "LMCache #3381 (https://github.com/LMCache/LMCache/issues/3381)",
        ("double-free", "bytes", "rest/memory"),
        ("store/same-prefix-at-once",),
    ),
    Requirement(
        "core.preemption.begins-again",
        "A request that runs again after a preemption has a new block table, and goes on with that.",
        f"{_SCHEDULER}._preempt_request`",
        ("plan-blocks", "resume-point", "bytes"),
        ("preempt/resumed",),
    ),
    Requirement(
        "core.preemption.frees",
        "A preemption frees blocks.",
        f"{_SCHEDULER}.schedule`, which preempts until an allocation succeeds; vLLM #49674"
        " (https://github.com/vllm-project/vllm/issues/49674)",
        ("idle-preemption",),
        ("preempt/any",),
    ),
    Requirement(
        "core.abort.waiting",
        "A request that is aborted before it has run leaves nothing behind: neither its hit nor what was reserved for it.",
        f"{_BASE}.request_finished`: “Called exactly once when a request has finished”",
        ("rest/memory", "rest/blocks"),
        ("end/aborted-unscheduled", "end/aborted-matched"),
    ),
    Requirement(
        "core.abort.running",
        "A request that is aborted while it runs leaves nothing behind, and what it did not compute is not found later.",
        f"{_SCHEDULER}.finish_requests`",
        ("rest/memory", "rest/blocks", "hits"),
        ("end/aborted-running",),
    ),
    Requirement(
        "core.abort.preempted",
        "A request that is aborted while it is preempted leaves nothing behind.",
        f"{_SCHEDULER}.finish_requests`",
        ("rest/memory", "rest/blocks"),
        ("end/aborted-preempted",),
    ),
    Requirement(
        "core.reset.forgets",
        "After a reset nothing is found until it is stored again.",
        f"{_BASE}.reset_cache`; vLLM #57727 (https://github.com/vllm-project/vllm/issues/57727)",
        ("reset-hit", "hits"),
        ("lookup/hit-before-reset",),
    ),
    Requirement(
        "core.reset.stores-again",
        "A reset succeeds when nothing is left to do, and what comes again after it is stored and found again.",
        f"{_BASE}.reset_cache`: “True if the cache was successfully reset, False otherwise”",
        ("rest/reset",),
        ("reset/connector",),
    ),
    Requirement(
        "core.reset.while-running",
        "A reset while requests run or wait with a hit neither spoils what they read nor leaves a part of the store.",
        f"{_SCHEDULER}.reset_connector_cache`; vLLM #41956 (https://github.com/vllm-project/vllm/pull/41956)",
        ("reset-hit", "hits", "bytes"),
        ("reset/while-running", "reset/while-matched", "reset/preempted"),
    ),
    Requirement(
        "core.end.blocks",
        "When all requests have ended, all KV blocks are free.",
        f"{_SCHEDULER}._free_request`; vLLM #46283 (https://github.com/vllm-project/vllm/issues/46283)",
        ("rest/blocks", "late-free"),
        ("end/all",),
    ),
    Requirement(
        "core.end.memory",
        "When all requests have ended, the connector remembers none of them, and holds no pin, lease or pending item.",
        f"{_BASE}.request_finished`",
        ("rest/memory",),
        ("end/all",),
    ),
    Requirement(
        "core.end.many",
        "What the connector remembers does not grow with the number of requests.",
        f"{_BASE}.request_finished`: “Called exactly once when a request has finished”",
        ("rest/memory",),
        ("end/many",),
    ),
    Requirement(
        "core.end.same-id",
        "A request with the id of one that has ended is a new one.",
        "vLLM 0.32, `InputProcessor`: ids are the caller's, and may come again",
        ("rest/memory", "hits", "bytes"),
        ("end/id-again",),
    ),
    Requirement(
        "core.end.kept-blocks",
        "Blocks that are kept after a request's end are given back, once, and soon after what they were kept for.",
        f"{_BASE}.request_finished`: “blocks should not be freed until the request_id is returned from get_finished()”",
        ("stray-completion", "late-free", "poll-starvation", "rest/blocks"),
        ("end/blocks-kept",),
    ),
    Requirement(
        "core.engine.lives",
        "No call of the connector raises, and vLLM's own assertions hold.",
        "vLLM 0.32, `EngineCoreProc.run_engine_core`: an exception ends the engine, and all of its requests",
        ("crash", "failed-call"),
        ("end/all",),
    ),
    Requirement(
        "core.engine.serves",
        "Every request that is not aborted is served.",
        f"{_SCHEDULER}.schedule`, which has no deadline",
        ("hang", "callers-gave-up", "never-admitted"),
        ("end/finished",),
    ),
    Requirement(
        "core.engine.statistics",
        "What the engine counts of cached tokens agrees with what was asked and answered.",
        "vLLM #36752 (https://github.com/vllm-project/vllm/issues/36752)",
        ("statistics",),
        ("alloc/external",),
    ),
    Requirement(
        "core.engine.steps",
        "The steps that the connector is given are those that run: with all of their blocks, and with drafts behind the"
        " prompt only.",
        "vLLM 0.32, `SchedulerOutput`; vLLM #30618 (https://github.com/vllm-project/vllm/pull/30618)",
        ("unreported-blocks", "early-drafts"),
        ("end/finished",),
    ),
)
