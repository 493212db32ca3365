"""vLLM's own lines about a request's KV: lookups, transfers, leases, preemptions, statistics of a prefill.

The formats are those of `v1/core/sched/scheduler.py`, V0's `core/scheduler.py`, `v1/metrics`, and of the connectors that come
with vLLM 0.32. V1's scheduler prints no preemption.
"""

from __future__ import annotations

import re

from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ingest.logs.line_patterns import ID_STOPS, NUMBER, Reading, Role, event, note, numbers, pattern_of

_ID = rf"(?P<request>[^{ID_STOPS}]*[^{ID_STOPS}.;])"
_ID_COLON = rf"(?P<request>[^{ID_STOPS}:]*[^{ID_STOPS}:.;])"


def _prompt_tokens(match: re.Match[str]) -> Reading:
    values = {name: int(value) for name, value in re.findall(r"\b(\w+)=(-?\d{1,15})\b", match[0])}
    names = {"total": "total", "cached_tokens": "reported", "external_kv_transfer": "from_connector"}
    fields = {field: values[name] for name, field in names.items() if name in values}
    if fields.get("total", 0) < 0:
        del fields["total"]
    printed = ", ".join(f"{name} {value}" for name, value in values.items())
    negative = any(value < 0 for value in values.values())
    return Reading(Role.EVENT, f"the statistics of a prefill: {printed}", None, Kind.STATS, fields, remarkable=negative)


def _offloading(match: re.Match[str]) -> Reading:
    """The length of the request is not printed."""
    hit, computed = numbers(match, "hit", "computed")
    words = f"looked up with {computed} tokens computed: {hit} more are in the store"
    fields = {"matched": computed + hit}
    return Reading(Role.EVENT, words, match["request"], Kind.RANK_LOOKUP, fields, "OffloadingConnector")


def _hf3fs(match: re.Match[str]) -> Reading:
    """Where nothing is new, what was computed is not known, but that it was all that matched."""
    matched, new, total = numbers(match, "matched", "new", "total")
    how = f"{matched} of {total} tokens found in the store, {new} of them new"
    reading = Reading(Role.EVENT, "", match["request"], Kind.RANK_LOOKUP, connector="HF3FSKVConnector")
    reading.fields = {"total": total, "matched": matched}
    reading.words = f"looked up, how many were computed is not printed: {how}"
    return reading


def _mooncake_alloc(match: re.Match[str]) -> Reading:
    (allocated,) = numbers(match, "count")
    words = f"blocks are allocated for {allocated} tokens from another instance"
    return Reading(
        Role.EVENT, words, match["request"], Kind.ALLOC, {"allocated": allocated}, connector=match["connector"]
    )


def _skipped_load(match: re.Match[str]) -> Reading:
    (expected,) = numbers(match, "count")
    words = f"{expected} tokens were allocated to be loaded, and the connector knows of no hit: nothing is loaded"
    fields = {"start": 0, "count": 0, "expected": expected}  # the vocabulary demands a place, and the log has none
    return Reading(
        Role.EVENT,
        words,
        match["request"],
        Kind.LOAD,
        fields,
        "SimpleCPUOffloadConnector",
        error=match[0],
        remarkable=True,
    )


VLLM = (
    pattern_of(
        "Finished sending KV transfer",
        rf"^(?:\[[^\]]*\] )?Finished sending KV transfer for request {_ID}",
        event(Kind.SENT, "its KV has been sent"),
    ),
    pattern_of(
        "Finished recving KV transfer",
        rf"^(?:\[[^\]]*\] )?Finished recving KV transfer for request {_ID}",
        event(Kind.RECEIVED, "its KV has been received"),
    ),
    pattern_of(
        " is preempted by ",
        rf"Sequence group {_ID} is preempted by PreemptionMode",
        event(Kind.PREEMPT, "preempted: its blocks are freed"),
    ),
    pattern_of(
        "Releasing expired KV blocks",
        rf"Releasing expired KV blocks for request {_ID} which were retrieved by"
        rf" (?P<readers>{NUMBER} (?:decode|remote) worker\(s\))",
        event(
            Kind.FREE,
            "its blocks are freed because the lease ran out; {readers} had read them",
            {"lease_expired": True},
            remarkable=True,
        ),
    ),
    pattern_of(
        " without being sent",
        rf"Request {_ID} timed out after (?P<seconds>{NUMBER}) seconds without being sent",
        event(
            Kind.FREE,
            "its blocks are freed because they were not sent within {seconds} seconds",
            {"lease_expired": True},
            remarkable=True,
        ),
    ),
    pattern_of(
        " KV load failure",
        rf"Recovered from KV load failure: {NUMBER} request\(s\) rescheduled \({NUMBER} tokens affected\)"
        rf"|Failing {NUMBER} request\(s\) due to KV load failure",
        note("vLLM says: {0}", remarkable=True),
    ),
    pattern_of(
        "Potentially invalid KV blocks",
        rf"Potentially invalid KV blocks for unrecognized request {_ID} were retrieved",
        event(
            Kind.READ,
            "its blocks are read by another instance, when this one no longer knows the request",
            remarkable=True,
        ),
    ),
    pattern_of(
        " offloaded tokens after ",
        rf"Request {_ID} hit (?P<hit>{NUMBER}) offloaded tokens after (?P<computed>{NUMBER}) GPU hit tokens",
        _offloading,
    ),
    pattern_of(
        " chunks upto ",
        rf"Request {_ID} offloading (?P<chunks>{NUMBER}) chunks upto (?P<end>{NUMBER}) tokens \(job (?P<job>\d+)\)",
        # Neither where they begin nor how long they are is printed.
        note("job {job} begins to store {chunks} chunks of its first {end} tokens"),
    ),
    pattern_of(
        "cannot store chunks",
        rf"Request {_ID_COLON}: cannot store chunks",
        note("not stored: there is no room"),
    ),
    pattern_of(
        "Delaying request ",
        rf"Delaying request {_ID} since (?P<why>[^\n]{{1,120}})",
        note("looked up: to be asked again, since {why}"),
    ),
    pattern_of(
        "Offloading manager delayed request",
        rf"Offloading manager delayed request {_ID}",
        note("looked up: the store is still looking, and vLLM will ask again"),
    ),
    pattern_of(
        "no pending",
        rf"update_state_after_alloc called for req_id={_ID} with num_external_tokens=(?P<count>{NUMBER}) but no"
        r" pending CPU hit",
        _skipped_load,
    ),
    pattern_of(
        "with no external tokens but",
        rf"update_state_after_alloc called for req_id={_ID} with no external tokens but",
        note("no tokens were allocated to be loaded, though the lookup had pinned some", remarkable=True),
    ),
    pattern_of(
        "Scheduling store of ",
        rf"Request {_ID_COLON}: Scheduling store of (?P<blocks>{NUMBER}) blocks to CPU",
        note("{blocks} blocks are to be stored"),
    ),
    pattern_of(
        "Token matching for ",
        rf"Token matching for {_ID_COLON}: (?P<matched>{NUMBER}) matched \({NUMBER} blocks\), (?P<new>{NUMBER}) new"
        rf" hits, prompt len (?P<total>{NUMBER})",
        _hf3fs,
    ),
    pattern_of(
        "update_state_after_alloc",
        rf"(?P<connector>\w{{1,40}}Connector) update_state_after_alloc: req_id={_ID}"
        rf" num_external_tokens=(?P<count>{NUMBER})",
        _mooncake_alloc,
    ),
    pattern_of(
        " local blocks(",
        rf"req {_ID_COLON}: local blocks\((?P<own>{NUMBER})\) < remote blocks\((?P<other>{NUMBER})\)",
        note("it has {own} blocks here, and {other} at the other instance: it cannot be received", remarkable=True),
    ),
    pattern_of(
        "expired before sending",
        rf"Request {_ID} expired before sending",
        note("not sent: its time was up", remarkable=True),
    ),
    pattern_of(
        "before releasing blocks",
        rf"request_finished\((?P<request>[^{ID_STOPS})]+)\) waiting for (?P<seconds>{NUMBER}) seconds",
        note("ended: its blocks are kept for {seconds} seconds, for another instance to read"),
    ),
    pattern_of(
        "extended lease",
        rf"Heartbeat extended lease for request {_ID}",
        note("the lease of its blocks is extended"),
    ),
    pattern_of(
        "transfer failed for request",
        rf"(?:RDMA )?transfer failed for request {_ID_COLON}",
        note("the transfer of its KV failed", remarkable=True),
    ),
    pattern_of(
        "TIMED OUT for req",
        rf"read TIMED OUT for req {_ID} after (?P<seconds>[\d.]{{1,12}})s",
        note("the transfer of its KV took longer than {seconds} s, and was given up", remarkable=True),
    ),
    pattern_of(
        "External prefix cache hit rate",
        r"External prefix cache hit rate: (?P<rate>\d{1,3}(?:\.\d+)?)%",
        # A rate over the last interval: no count of any request.
        note("the engine reports an external prefix cache hit rate of {rate} %"),
    ),
    pattern_of("PromptTokenStats(", r"PromptTokenStats\([^\n]*", _prompt_tokens),
)
