"""What a connector must do that has a feature."""

from __future__ import annotations

from kvtrail.connector.simulate.conformance.requirement import Feature, Requirement

_BASE = "vLLM 0.32, `KVConnectorBase_V1"
_SCHEDULER = "vLLM 0.32, `Scheduler"
_NIXL = "vLLM 0.32, `Nixl"

_LOADS = (
    Requirement(
        "extended.async-loads.declared",
        "An answer says truly whether its load runs between steps, and an answer of 0 tokens never says so.",
        f"{_BASE}.get_num_new_matched_tokens`: “Must be 'False' if the first element is 0”; vLLM #54301"
        " (https://github.com/vllm-project/vllm/pull/54301)",
        ("async-declaration",),
        ("lookup/async",),
        Feature.ASYNC_LOADS,
    ),
    Requirement(
        "extended.async-loads.received-once",
        "The end of a load is reported once, for a request with a load under way, and is not offered again.",
        f"{_SCHEDULER}._update_from_kv_xfer_finished`; vLLM #46240 (https://github.com/vllm-project/vllm/issues/46240)",
        ("stray-completion", "second-load"),
        ("load/received",),
        Feature.ASYNC_LOADS,
    ),
    Requirement(
        "extended.async-loads.in-place",
        "When a load is reported as ended, its bytes are in place: also if it ends late, or before one that began earlier.",
        f"{_BASE}.get_finished`; vLLM #29608 (https://github.com/vllm-project/vllm/issues/29608)",
        ("byte-early", "bytes"),
        ("load/late", "load/out-of-order"),
        Feature.ASYNC_LOADS,
    ),
    Requirement(
        "extended.async-loads.ends",
        "Every load ends, and the request runs after it.",
        "vLLM 0.32, `RequestStatus.WAITING_FOR_REMOTE_KVS`; vLLM #53095 (https://github.com/vllm-project/vllm/issues/53095)",
        ("stuck-load", "stuck-promotion", "stalled-transfers", "stuck-step", "hang"),
        ("load/open",),
        Feature.ASYNC_LOADS,
    ),
    Requirement(
        "extended.async-loads.blocks-of-its-own",
        "While a load is under way its blocks are in no other request's table.",
        "vLLM 0.32, `KVCacheManager.allocate_slots`, `delay_cache_blocks`; vLLM #52360"
        " (https://github.com/vllm-project/vllm/issues/52360)",
        ("unloaded-hit", "block-reuse", "bytes"),
        ("load/beside-others",),
        Feature.ASYNC_LOADS,
    ),
    Requirement(
        "extended.async-loads.aborted",
        "The blocks of a request that is aborted during its load are kept until the load has ended, and then given back.",
        f"{_SCHEDULER}.finish_requests`; vLLM #51637 (https://github.com/vllm-project/vllm/issues/51637)",
        ("block-reuse", "late-free", "stray-completion", "rest/blocks"),
        ("load/open-at-abort",),
        Feature.ASYNC_LOADS,
    ),
    Requirement(
        "extended.async-loads.reset",
        "A reset while a load is under way neither spoils the load nor leaves it open.",
        f"{_BASE}.reset_cache`",
        ("reset-hit", "bytes", "rest/blocks"),
        ("load/open-at-reset",),
        Feature.ASYNC_LOADS,
    ),
)
_LOOKUPS = (
    Requirement(
        "extended.async-lookups.answered",
        "A lookup that is answered with “ask me later” is answered with a number in the end.",
        f"{_BASE}.get_num_new_matched_tokens`: “the scheduler should query for this request again later”; vLLM #44294"
        " (https://github.com/vllm-project/vllm/issues/44294)",
        ("endless-deferral", "hang"),
        ("lookup/answered-later",),
        Feature.ASYNC_LOOKUPS,
    ),
    Requirement(
        "extended.async-lookups.true-when-answered",
        "The number that comes later is right for what vLLM has computed by then.",
        f"{_BASE}.get_num_new_matched_tokens`: “at the time of the call”",
        ("over-report", "stale-lookup", "hits"),
        ("lookup/answered-later",),
        Feature.ASYNC_LOOKUPS,
    ),
    Requirement(
        "extended.async-lookups.aborted",
        "What is kept or fetched for a request that is to be looked up later is given back when the request is aborted.",
        f"{_SCHEDULER}._free_request`, which notifies the connector; vLLM #44101"
        " (https://github.com/vllm-project/vllm/pull/44101)",
        ("rest/memory", "rest/room", "rest/blocks"),
        ("end/aborted-deferred",),
        Feature.ASYNC_LOOKUPS,
    ),
)
_FAILURES = (
    Requirement(
        "extended.failures.computed-again",
        "No request runs on blocks that failed to load before they are computed again.",
        f"{_SCHEDULER}._update_requests_with_invalid_blocks`; vLLM #49250 (https://github.com/vllm-project/vllm/issues/49250)",
        ("failed-load-resume", "bytes"),
        ("load/computed-after-failure",),
        Feature.FAILURES,
    ),
    Requirement(
        "extended.failures.not-stored",
        "Neither blocks that failed to load are stored before they are computed again, nor what was computed from them.",
        "vllm-ascend #16876 (https://github.com/vllm-project/vllm-ascend/pull/16876) and vllm-ascend #16875"
        " (https://github.com/vllm-project/vllm-ascend/pull/16875)",
        ("store-failed-load", "failed-load-hit", "bytes"),
        ("load/stored-after-failure", "load/computed-after-failure"),
        Feature.FAILURES,
    ),
    Requirement(
        "extended.failures.not-offered",
        "Tokens that failed to load, and that nobody has computed since, are not claimed as stored by that request.",
        f"{_BASE}.get_block_ids_with_load_errors`",
        ("hits",),
        ("load/failed",),
        Feature.FAILURES,
    ),
    Requirement(
        "extended.failures.received-too",
        "A load between steps that fails is reported as ended, too, and its blocks no later than that.",
        f"{_BASE}.get_block_ids_with_load_errors`: “the request must still be reported as finished receiving”",
        ("short-load", "stuck-load", "rest/blocks"),
        ("load/failed-between-steps",),
        Feature.FAILURES,
    ),
    Requirement(
        "extended.failures.all-of-core",
        "Where loads fail, all of core holds.",
        f"{_SCHEDULER}._handle_invalid_blocks`",
        ("crash", "hang", "rest/memory"),
        ("load/failed",),
        Feature.FAILURES,
        covers_all=True,
    ),
)
_GROUPS = (
    Requirement(
        "extended.groups.joint-boundary",
        "A hit ends where every KV cache group has what the next token needs.",
        "vLLM 0.32, `HybridKVCacheCoordinator.find_longest_cache_hit`; vLLM #50359"
        " (https://github.com/vllm-project/vllm/pull/50359)",
        ("joint-boundary", "null-block", "bytes"),
        ("groups/hit",),
        Feature.GROUPS,
    ),
    Requirement(
        "extended.groups.blocks",
        "Each group's copies name blocks of that group's table, and none that the window has left behind.",
        "vLLM 0.32, `SupportsHMA.request_finished_all_groups`; vLLM #42959 (https://github.com/vllm-project/vllm/pull/42959)",
        ("plan-blocks", "stale-block", "bytes"),
        ("groups/load-planned", "groups/store-planned", "groups/hit"),
        Feature.GROUPS,
    ),
    Requirement(
        "extended.groups.states",
        "A recurrent state is stored only for a length at which a step has ended, and read only for that length.",
        f"{_SCHEDULER}._mamba_block_aligned_split`; vLLM #53084 (https://github.com/vllm-project/vllm/issues/53084)",
        ("state-boundary", "bytes"),
        ("groups/state",),
        Feature.GROUPS,
    ),
    Requirement(
        "extended.groups.all-of-core",
        "With several KV cache groups all of core holds.",
        "vLLM 0.32, `SupportsHMA`: “required to use the connector together with hybrid memory allocator”",
        ("crash", "hang", "rest/memory", "rest/blocks"),
        ("groups/end",),
        Feature.GROUPS,
        covers_all=True,
    ),
)
_RANKS = (
    Requirement(
        "extended.ranks.shortest",
        "A hit promises no more than the rank holds that holds least.",
        "LMCache #1467 (https://github.com/LMCache/LMCache/issues/1467)",
        ("rank-disagreement", "bytes"),
        ("ranks/answers", "ranks/hit"),
        Feature.RANKS,
    ),
    Requirement(
        "extended.ranks.own-part",
        "Each rank loads its own part of the same tokens.",
        "LMCache #1426 (https://github.com/LMCache/LMCache/pull/1426)",
        ("bytes", "byte-drift"),
        ("ranks/load",),
        Feature.RANKS,
    ),
    Requirement(
        "extended.ranks.all-of-core",
        "With several ranks, one ending its transfers later than the other, all of core holds.",
        "vLLM 0.32, `KVOutputAggregator.aggregate`",
        ("crash", "hang", "stray-completion", "rest/memory", "rest/blocks"),
        ("ranks/hit",),
        Feature.RANKS,
        covers_all=True,
    ),
)
_LAYERS = (
    Requirement(
        "extended.layers.loaded",
        "A layer does not run before its load is in place, though later layers may still be loading.",
        f"{_BASE}.wait_for_layer_load`: “called from within attention layer to ensure async copying from start_load_kv is"
        " complete”",
        ("byte-early", "bytes"),
        ("load/within-step",),
        Feature.LAYERS,
    ),
    Requirement(
        "extended.layers.saved",
        "Every layer is saved, and what is loaded later is what it held when its step had run.",
        f"{_BASE}.save_kv_layer` and `wait_for_save`",
        ("bytes",),
        ("bytes/loads",),
        Feature.LAYERS,
    ),
)
_PULL = (
    Requirement(
        "extended.pull.kept",
        "The blocks of a request that is to be handed on are kept when it ends.",
        f"{_BASE}.request_finished`; vLLM #46008 (https://github.com/vllm-project/vllm/pull/46008)",
        ("refused-handoff",),
        ("handoff/asked",),
        Feature.PULL,
    ),
    Requirement(
        "extended.pull.one-name",
        "What is kept has a name of its own, and the request that takes it is the one that it was made for.",
        "vLLM #52234 (https://github.com/vllm-project/vllm/issues/52234) and vLLM #49796"
        " (https://github.com/vllm-project/vllm/pull/49796)",
        ("crossed-handoff", "ambiguous-handoff", "second-handoff"),
        ("handoff/taken",),
        Feature.PULL,
    ),
    Requirement(
        "extended.pull.contents",
        "What is read is what was computed: the same blocks, in the same order, and no more tokens.",
        f"{_NIXL}PullConnectorScheduler.request_finished`; vLLM #46357 (https://github.com/vllm-project/vllm/pull/46357)",
        ("altered-handoff", "short-handoff", "bytes"),
        ("handoff/received",),
        Feature.PULL,
    ),
    Requirement(
        "extended.pull.lease",
        "Blocks are read before they are given back, and given back after all of their readers have reported.",
        f"{_NIXL}PullConnectorWorker._get_new_notifs`; vLLM #21570 (https://github.com/vllm-project/vllm/issues/21570)",
        ("stale-handoff", "late-read", "miscounted-readers"),
        ("handoff/read",),
        Feature.PULL,
    ),
    Requirement(
        "extended.pull.acknowledged",
        "A hand-off that is needed no more is reported, so that its blocks are not kept until the lease runs out.",
        f"{_NIXL}PullConnectorScheduler.request_finished`; vLLM #43541 (https://github.com/vllm-project/vllm/pull/43541)",
        ("unacknowledged-handoff", "late-free"),
        ("handoff/read", "handoff/aborted"),
        Feature.PULL,
    ),
    Requirement(
        "extended.pull.failure",
        "A read that fails is reported, and the next one from the same engine may succeed.",
        "vLLM #27083 (https://github.com/vllm-project/vllm/issues/27083)",
        ("dead-pair", "failed-load-resume", "bytes"),
        ("handoff/failed",),
        Feature.PULL,
    ),
    Requirement(
        "extended.pull.all-of-core",
        "In both engines all of core holds.",
        f"{_BASE}.request_finished`: “True if the request is being saved/sent asynchronously”",
        ("crash", "hang", "rest/memory", "rest/blocks", "stuck-load"),
        ("handoff/received",),
        Feature.PULL,
        covers_all=True,
    ),
)
_PUSH = (
    Requirement(
        "extended.push.contents",
        "What is written to the other engine is what was computed for its request, into the blocks that it has named.",
        f"{_NIXL}PushConnectorWorker`; vLLM #56468 (https://github.com/vllm-project/vllm/pull/56468)",
        ("crossed-handoff", "ambiguous-handoff", "altered-handoff", "short-handoff", "bytes"),
        ("handoff/received",),
        Feature.PUSH,
    ),
    Requirement(
        "extended.push.kept",
        "Blocks are kept until they are written, and then given back.",
        f"{_BASE}.has_pending_push_work`",
        ("refused-handoff", "stale-handoff", "late-read", "late-free", "rest/blocks"),
        ("handoff/written",),
        Feature.PUSH,
    ),
    Requirement(
        "extended.push.all-of-core",
        "In both engines all of core holds.",
        f"{_BASE}.has_pending_push_work`",
        ("crash", "hang", "rest/memory", "rest/blocks", "stuck-load"),
        ("handoff/received",),
        Feature.PUSH,
        covers_all=True,
    ),
)
_EVENTS = (
    Requirement(
        "extended.events.stored",
        "What a KV cache event reports as stored was computed, and what a lookup finds was reported as stored.",
        f"{_BASE}.take_events`; vLLM 0.32, `vllm/distributed/kv_events.py`",
        ("kv-events",),
        ("events/stored", "events/found"),
        Feature.EVENTS,
    ),
    Requirement(
        "extended.events.removed",
        "What a KV cache event reports as removed was reported as stored before, and is not found until it is stored again.",
        f"{_BASE}.take_events`; vLLM 0.32, `vllm/distributed/kv_events.py`",
        ("kv-events",),
        ("events/removed",),
        Feature.EVENTS,
    ),
    Requirement(
        "extended.events.all-of-core",
        "With KV cache events all of core holds.",
        f"{_BASE}.take_events`",
        ("crash", "hang", "hits", "bytes", "rest/memory", "rest/blocks", "rest/room"),
        ("events/stored",),
        Feature.EVENTS,
        covers_all=True,
    ),
)
_PROBE = (
    Requirement(
        "extended.probe.agrees",
        "What the probe reads of keys, plans and counts agrees with what the scheduler and the connector say to each other.",
        "kvtrail, docs/connectors.md",
        ("phantom-hit", "load-range", "plan-blocks", "double-free", "key-mismatch"),
        ("probe/seen",),
        Feature.PROBE,
    ),
)
EXTENDED = (*_LOADS, *_LOOKUPS, *_FAILURES, *_GROUPS, *_RANKS, *_LAYERS, *_PULL, *_PUSH, *_EVENTS, *_PROBE)
