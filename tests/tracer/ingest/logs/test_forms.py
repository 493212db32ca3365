"""The forms of lines, rewritten after the formats of public logs: the event of each."""

from __future__ import annotations

from typing import Any

import pytest

from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ingest.logs.line_patterns import Role
from kvtrail.tracer.ingest.logs.reader import read

R = "cmpl-0f1e2d3c-7-0"
WHERE = " (vllm_v1_adapter.py:1:lmcache.integration.vllm.vllm_v1_adapter)"


def reqid(rest: str) -> str:
    return f"Reqid: {R}, Total tokens {rest}{WHERE}"


@pytest.mark.parametrize(
    ("rest", "kind", "fields"),
    [
        # the computed tokens are printed: by 0.3.11, by later versions, and by those that cap the number at 0
        ("900, LMCache hit tokens: 0, need to load: 0, num_computed_tokens 0", Kind.LOOKUP, (900, 0, 0, 0)),
        ("900, LMCache hit tokens: 512, need to load: 512, num_computed_tokens 0", Kind.LOOKUP, (900, 0, 512, 512)),
        ("900, LMCache hit tokens: 256, need to load: -80, num_computed_tokens 336", Kind.LOOKUP, (900, 336, 256, 0)),
        ("900, Inference Engine computed tokens: 336, LMCache hit tokens: 256, need to load: 0", Kind.LOOKUP,
         (900, 336, 256, 0)),
        ("900, Inference Engine computed tokens: 16, LMCache hit tokens: 256, need to load: 240", Kind.LOOKUP,
         (900, 16, 256, 240)),
        ("900, Inference Engine computed tokens: 16, LMCache hit tokens: 256, but need to load: 240 < min_retrieve 512,"
         " skip retrieve but record for save skip", Kind.LOOKUP, (900, 16, 256, 0)),
        ("512, LMCache hit tokens: 512, need to load: 15, num_computed_tokens 496", Kind.LOOKUP, (512, 496, 512, 15)),
        # not printed, and the answer is 0 whatever they are
        ("713, LMCache hit tokens: 512, need to load: -192", Kind.LOOKUP, (713, 704, 512, 0)),
        ("81, LMCache hit tokens: 64, need to load: -16", Kind.LOOKUP, (81, 80, 64, 0)),
        ("7283, LMCache hit tokens: 0, need to load: -400", Kind.LOOKUP, (7283, 400, 0, 0)),
        ("900, LMCache hit tokens: 0, need to load: 0", Kind.LOOKUP, (900, 0, 0, 0)),
        # not printed, and the answer would be judged against a number made of it
        ("900, LMCache hit tokens: 512, need to load: 512", Kind.RANK_LOOKUP, (900, 512)),
        ("265, LMCache hit tokens: 264, need to load: 264", Kind.RANK_LOOKUP, (265, 264)),
        # a full hit: whether one token was taken off, and where, differs from version to version
        ("512, LMCache hit tokens: 512, need to load: 511", Kind.RANK_LOOKUP, (512, 512)),
        ("512, LMCache hit tokens: 512, need to load: 0", Kind.RANK_LOOKUP, (512, 512)),
        # all that is left: legal only for an asynchronous load, and the line does not say which it is
        ("512, LMCache hit tokens: 512, need to load: 512, num_computed_tokens 0", Kind.RANK_LOOKUP, (512, 512)),
        # numbers that contradict each other: more computed than there is
        ("100, LMCache hit tokens: 64, need to load: -400", Kind.RANK_LOOKUP, (100, 64)),
    ],
)  # fmt: skip
def test_a_lookup(rest: str, kind: Kind, fields: tuple[int, ...]) -> None:
    reading = read(reqid(rest))
    assert reading is not None
    names = ("total", "computed", "matched", "returned") if kind is Kind.LOOKUP else ("total", "matched")
    assert (reading.kind, reading.request, reading.fields) == (kind, R, dict(zip(names, fields, strict=True)))


@pytest.mark.parametrize(
    ("text", "role", "kind", "request_id", "fields"),
    [
        (f"Storing KV cache for 256 out of 512 tokens (skip_leading_tokens=256) for request {R}{WHERE}", Role.STORING,
         Kind.STORE, R, {"start": 256, "count": 256}),
        (f"Storing KV cache for 256 out of 768 tokens for request {R}{WHERE}", Role.STORING, Kind.STORE, R,
         {"start": 512, "count": 256}),
        ("Stored 256 out of total 256 tokens. size: 0.0273 gb, cost 3.9 ms", Role.STORED, Kind.STORE, None,
         {"count": 256, "of": 256}),
        (f"[req_id={R}] Stored 254 out of total 256 tokens. size: 0.0273 GB", Role.STORED, Kind.STORE, R,
         {"count": 254, "of": 256}),
        (f"[req_id={R} kv_group=0] Stored 254 out of total 256 tokens.", Role.STORED, Kind.STORE, R,
         {"count": 254, "of": 256}),
        ("Retrieved 0 out of 256 required tokens (from 5888 total tokens). size: 0.0000 gb", Role.RETRIEVED, Kind.LOAD,
         None, {"start": 5632, "count": 0, "expected": 256}),
        (f"[req_id={R}] Retrieved 256 out of 256 required tokens (from 256 total tokens).", Role.RETRIEVED, Kind.LOAD, R,
         {"start": 0, "count": 256, "expected": 256}),
        ("Retrieved 0 out of 130 out of total 130 tokens (cache_engine.py:5:x)", Role.RETRIEVED, Kind.LOAD, None,
         {"start": 0, "count": 0, "expected": 130}),
        ("Retrieved 1002 out of total 1002 out of total 1002 tokens. size: 0.1 gb", Role.RETRIEVED, Kind.LOAD, None,
         {"start": 0, "count": 1002, "expected": 1002}),
        (f"Request {R} timed out after 480 seconds without being sent. Freeing its blocks.", Role.EVENT, Kind.FREE, R,
         {"lease_expired": True}),
        ("The number of retrieved tokens is less than the expected number of tokens! This", Role.SHORT_OF, None, None, {}),
        (f"Request {R}The number of retrieved tokens is less than the expected", Role.SHORT_OF, None, R, {}),
        ("Num retrieved tokens: 0, num expected tokens: 9 (vllm_v1_ad", Role.SHORTFALL, Kind.LOAD, None,
         {"count": 0, "expected": 9}),
        (f"AssertionError: Mismatch in tokens to load: 256 vs 256 (tokens in lmcache) - 336 (tokens in vllm) - 0 (full"
         f" lmcache hits subtracts last token to recalculate logits) for request {R}", Role.FAILURE, Kind.ALLOC, R,
         {"allocated": 256, "matched": 256, "computed": 336}),
        ("Mismatch in tokens to load: 24 vs 24 (tokens in lmcache) - 16 (tokens in vllm)", Role.FAILURE, Kind.ALLOC,
         None, {"allocated": 24, "matched": 24, "computed": 16}),
        ("Mismatch in tokens to load: 256 vs 256 (tokens in the cache) - 336 (tokens in vllm) - 0 (last token)",
         Role.FAILURE, Kind.ALLOC, None, {"allocated": 256, "matched": 256, "computed": 336}),
        (f"Scheduled to load 512 tokens (336 cached in vLLM) for request {R}{WHERE}", Role.EVENT, Kind.LOAD_PLAN, R,
         {"start": 336, "count": 176}),
        (f"Scheduled to load 256 tokens (336 cached in vLLM) for request {R}{WHERE}", Role.EVENT, Kind.LOAD_PLAN, R,
         {"start": 336, "count": 0}),
        (f"SimpleCPUOffloadScheduler: update_state_after_alloc called for req_id={R} with num_external_tokens=64 but no"
         " pending CPU hit from get_num_new_matched_tokens(); skipping load.", Role.EVENT, Kind.LOAD, R,
         {"start": 0, "count": 0, "expected": 64}),
        ("AssertionError: num_external_tokens=300 is not aligned to hash_block_size=16", Role.FAILURE, Kind.FAILURE, None,
         {"call": "update_state_after_alloc"}),
        ("AssertionError: SimpleCPU external loads must start at a scheduler-block boundary", Role.FAILURE, Kind.FAILURE,
         None, {"call": "update_state_after_alloc"}),
        (f"AssertionError: Block count mismatch for {R}: expected 4, got 5", Role.FAILURE, Kind.FAILURE, None,
         {"call": "update_state_after_alloc"}),
        (f"AssertionError: Preempted request {R} has num_computed_tokens 256 but expected 336 (full_hit_adj=False)",
         Role.FAILURE, Kind.FAILURE, R, {"call": "build_connector_meta"}),
        (f"Lookup {R}: Backend LocalCPUBackend hit 2 chunks out of 97, 512 tokens (storage_manager.py:6:x)", Role.EVENT,
         Kind.RANK_LOOKUP, R, {"matched": 512}),
        ("[HASH_GENERATION] prefix_hash=-1, tokens_len=256, tokens_preview=(1, 2, 3), extra_keys=None, PYTHONHASHSEED=0,"
         " result_hash=255 (token_database.py:2:x)", Role.EVENT, Kind.KEY, None,
         {"chunk_key": "00000000000000ff", "chunk_parent": "f" * 16}),
        ("Ref count of MemoryObj 1085is negative: -1.Double free occurred somewhere.", Role.EVENT, Kind.REFCOUNT, None,
         {"refs": -1}),
        ("Pin count of MemoryObj -1is negative: -2.Double unpin occurred somewhere.", Role.EVENT, Kind.REFCOUNT, None,
         {"pins": -2}),
        (f"Finished sending KV transfer for request {R}", Role.EVENT, Kind.SENT, R, {}),
        (f"[scheduler.py:1183] Finished sending KV transfer for request {R}", Role.EVENT, Kind.SENT, R, {}),
        (f"Finished recving KV transfer for request {R}", Role.EVENT, Kind.RECEIVED, R, {}),
        (f"Sequence group {R} is preempted by PreemptionMode.RECOMPUTE mode because there", Role.EVENT, Kind.PREEMPT, R,
         {}),
        (f"Releasing expired KV blocks for request {R} which were retrieved by 0 decode worker(s) within 480 seconds.",
         Role.EVENT, Kind.FREE, R, {"lease_expired": True}),
        (f"Releasing expired KV blocks for request {R} which were retrieved by 0 remote worker(s) before lease expired.",
         Role.EVENT, Kind.FREE, R, {"lease_expired": True}),
        (f"Potentially invalid KV blocks for unrecognized request {R} were retrieved by a decode worker.", Role.EVENT,
         Kind.READ, R, {}),
        ("x.prompt_token_stats=PromptTokenStats(ALL_SOURCES=('a',), computed=3809, **local_cache_hit=-1,**"
         " external_kv_transfer=0, **cached_tokens=-1**, recomputed_tokens=0, total=3808)", Role.EVENT, Kind.STATS, None,
         {"total": 3808, "reported": -1, "from_connector": 0}),
    ],
)  # fmt: skip
def test_a_form(text: str, role: Role, kind: Kind | None, request_id: str | None, fields: dict[str, Any]) -> None:
    reading = read(text)
    assert reading is not None
    assert (reading.role, reading.kind, reading.request, reading.fields) == (role, kind, request_id, fields)


def test_a_lookup_of_lmcache_s_siblings_has_another_name() -> None:
    reading = read(reqid("900, kvpool hit tokens: 512, need to load: 176, num_computed_tokens 336"))
    assert reading is not None
    assert (reading.kind, reading.request, reading.connector) == (Kind.LOOKUP, R, "kvpool")
    assert reading.fields == {"total": 900, "computed": 336, "matched": 512, "returned": 176}


@pytest.mark.parametrize(
    "text",
    [
        f"Saving KV cache for 256 out of 512 tokens (save_spec.skip_leading_tokens=256) for request {R}",
        f"Offloading KV caches for 256 of 512 tokens (skip_leading_tokens=256) to pool 3 for request {R}",
    ],
)
def test_a_store_is_read_whatever_its_verb(text: str) -> None:
    reading = read(text)
    assert reading is not None
    assert (reading.role, reading.request, reading.fields) == (Role.STORING, R, {"start": 256, "count": 256})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SiMM exist hit cache!",
        f"Skipping, Finished sending KV transfer for request {R}, but the request is already freed.",
        "The request asks for 300 tokens, which is more than the total tokens 256 that fit",
        f"Request {R}: max_load_tokens set to 512",
        f"Received request {R}: prompt tokens: 300, max_tokens: 16",
        "Waiting for the request id to load 10 tokens",
        "sent to connector FSConnector",
        'INFO:     127.0.0.1:33988 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        f"KeyError: '{R}'",
        f"Reqid: {R}, Total tokens 900, LMCache hit tokens: 51",
        f"Reqid: {R}, Total tokens 900, LMCache hit tokens: None.",
        f"Reqid: {R}, Total tokens 900, LMCache hit chunks: 2, need to load: 176",
        f"Reqid: {R}, Total tokens 9{'0' * 20}, LMCache hit tokens: 51, need to load: 4",
        "Num retrieved tokens: 0, num expected tok",
    ],
)
def test_what_is_no_line_of_ours_or_cut_too_short_is_not_read(text: str) -> None:
    assert read(text) is None


def test_a_key_stands_for_its_content_only_where_all_of_it_is_shown() -> None:
    def key(length: int, tokens: str) -> dict[str, Any]:
        reading = read(
            f"[HASH_GENERATION] prefix_hash=1, tokens_len={length}, tokens_preview=({tokens}), extra_keys=None,"
            " PYTHONHASHSEED=0, result_hash=abcdef0123456789ff"
        )
        assert reading is not None
        return reading.fields

    assert key(3, "1, 2, 3") == key(3, "1, 2, 3")
    assert key(3, "1, 2, 3")["chunk_content"] != key(3, "1, 2, 4")["chunk_content"]
    assert key(3, "1, 2, 3")["chunk_key"] == "abcdef0123456789"
    assert "chunk_content" not in key(4, "1, 2, 3")
