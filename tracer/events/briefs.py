"""What each kind of event and span tells, in a sentence or two, for the documentation."""

from __future__ import annotations

from kvtrail.tracer.events.semconv import Kind

BRIEFS: dict[Kind, str] = {
    Kind.REQUEST_START: "A request reached the scheduler: announces the root span, which ends only with the request.",
    Kind.REQUEST: "Root of a request's KV story, from its arrival to its end.",
    Kind.CUT_OFF: "Root of a request that was open when its engine ended: the span is a `kv.request` with status ERROR, whose"
    " outcome is `cut_off`. The engine sends it as it shuts down, or in its place the export process, which outlives it. It"
    " says nothing of how the request itself would have ended, and no rule judges it.",
    Kind.LOOKUP: "`get_num_new_matched_tokens`: the scheduler asks what the connector could load.",
    Kind.ALLOC: "`update_state_after_alloc`: blocks were allocated, and so many external tokens are to be loaded.",
    Kind.SCHEDULE: "A step of a request: the first after its admission or resumption. At level `detailed` also each later one"
    " that says something new; these come as rows of `kv.step`.",
    Kind.PREEMPT: "The scheduler took the request's blocks away; its computed tokens are 0 again.",
    Kind.LOAD: "Tokens were copied from the connector's store into KV blocks.",
    Kind.STORE: "Tokens were copied from KV blocks into the connector's store.",
    Kind.RECEIVED: "The workers reported an asynchronous load as finished.",
    Kind.SENT: "The workers reported an asynchronous store as finished.",
    Kind.LOAD_PLAN: "What the scheduler's side of the connector tells its workers to load, read from its metadata.",
    Kind.STORE_PLAN: "What the scheduler's side of the connector tells its workers to store, read from its metadata.",
    Kind.TRANSFER_END: "An asynchronous transfer of a plan is over, as the connector's workers reported it.",
    Kind.FLUSH: "The workers must wait for a transfer before they run the step: its blocks are given to others.",
    Kind.LOAD_ERROR: "Blocks whose load failed, as the workers reported them to the scheduler.",
    Kind.RANK_LOOKUP: "What one rank's store, or one KV cache group's, answered to a lookup.",
    Kind.PREFETCH: "Tokens were fetched into a nearer tier of the store because of a lookup.",
    Kind.LOCK: "Chunks were locked against eviction for a request.",
    Kind.UNLOCK: "Chunks that were locked for a request were given free.",
    Kind.REFCOUNT: "The connector's own count of references or pins of a stored chunk.",
    Kind.FREE: "KV blocks that were kept for a request, after its end, were given back.",
    Kind.READ: "Another instance has read a request's KV blocks.",
    Kind.STATS: "The engine's own statistics of a request's prefill.",
    Kind.KEY: "A chunk's key was computed.",
    Kind.POOL: "The state of a pool of blocks or bytes, as its owner reports it.",
    Kind.INDEX: "The state of an index that follows KV events.",
    Kind.EVICT: "A chunk left the connector's store to make room.",
    Kind.RESET: "`reset_cache`: the connector was told to forget what it holds.",
    Kind.CACHE_RESET: "vLLM forgot its own prefix cache before this step; what the connector holds stays.",
    Kind.PREFIX_CACHE: "What vLLM's own prefix cache has stored and removed since the last of these, in order. It is told"
    " before each lookup and each allocation, and else within a second: what is told between a lookup and its allocation was"
    " changed by that allocation. With a tier: what the connector's store, which is that tier, has gained and lost.",
    Kind.HOLDINGS: "A part of the list of all chunks in the connector's store, told anew so that a gap is not for ever.",
    Kind.BLOCK_CHECK: "A worker compared what KV blocks of a request hold with what was computed under their hashes. Wrong"
    " blocks are listed, up to 64; right ones are only counted, and told now and then.",
    Kind.FAILURE: "A call of the connector raised; the message is its status. Lookups and allocations that raised are spans"
    " of their own kinds.",
    Kind.HEARTBEAT: "A recorder's sign of life, with its own losses.",
}

STEP_BRIEF = (
    "Later steps of requests, as far as they say something new: a row is a `kv.schedule` whose request gets blocks, runs"
    " more than one token or drafts, has just begun to decode, was left out of a step, or had a failed load. All the"
    " other running requests have decoded one token. Each row has its own number among the recorder's events, the first"
    " one that of the span, and the tracer takes the span apart: in its store, its api and its answers each row is a"
    " `kv.schedule` again. The span is a child of `kv.engine`, and not in the requests' traces."
)

ENGINE_BRIEF = (
    "Root of what a recorder says in a minute and that concerns no request: steps of several requests, evictions, pools,"
    " what a store holds, signs of life. It lasts the whole minute, comes with the first of its children, and says nothing"
    " itself: it has no number, and no rule asks for it."
)

FINDING_BRIEF = (
    "A finding, as a sidecar that forwards writes it (docs/forwarding.md): the event `kv.finding` of the request's root, and"
    " a span of its own, `kv.finding <rule>`, below the root, with links to its witnesses. The scope of the span is"
    " `kvtrail.findings`. It lasts from its first witness to its last, and its status is ERROR, unless all of it was healed."
    " The span also has what names the engine, the request and the connector on every span."
)
