"""vLLM's own lines about a request's KV: lookups, transfers, leases, preemptions, statistics of a prefill.

The formats are those of `v1/core/sched/scheduler.py`, V0's `core/scheduler.py`, `v1/metrics`, and of the connectors that come
with vLLM 0.32. V1's scheduler prints no preemption.
"""

from __future__ import annotations

import re

from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ingest.logs.readings import ID_STOPS, NUMBER, Form, Reading, Role, Table, event, note, numbers

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


VLLM = Table(
    "",
    (
        Form(
            "Finished sending KV transfer",
            re.compile(rf"^(?:\[[^\]]*\] )?Finished sending KV transfer for request {_ID}"),
            event(Kind.SENT, "its KV has been sent"),
        ),
        Form(
            "Finished recving KV transfer",
            re.compile(rf"^(?:\[[^\]]*\] )?Finished recving KV transfer for request {_ID}"),
            event(Kind.RECEIVED, "its KV has been received"),
        ),
        Form(
            " is preempted by ",
            re.compile(rf"Sequence group {_ID} is preempted by PreemptionMode"),
            event(Kind.PREEMPT, "preempted: its blocks are freed"),
        ),
        Form(
            "Releasing expired KV blocks",
            re.compile(
                rf"Releasing expired KV blocks for request {_ID} which were retrieved by"
                rf" (?P<readers>{NUMBER} (?:decode|remote) worker\(s\))"
            ),
            event(
                Kind.FREE,
                "its blocks are freed because the lease ran out; {readers} had read them",
                {"lease_expired": True},
                remarkable=True,
            ),
        ),
        Form(
            " without being sent",
            re.compile(rf"Request {_ID} timed out after (?P<seconds>{NUMBER}) seconds without being sent"),
            event(
                Kind.FREE,
                "its blocks are freed because they were not sent within {seconds} seconds",
                {"lease_expired": True},
                remarkable=True,
            ),
        ),
        Form(
            " KV load failure",
            re.compile(
                rf"Recovered from KV load failure: {NUMBER} request\(s\) rescheduled \({NUMBER} tokens affected\)"
                rf"|Failing {NUMBER} request\(s\) due to KV load failure"
            ),
            note("vLLM says: {0}", remarkable=True),
        ),
        Form(
            "Potentially invalid KV blocks",
            re.compile(rf"Potentially invalid KV blocks for unrecognized request {_ID} were retrieved"),
            event(
                Kind.READ,
                "its blocks are read by another instance, when this one no longer knows the request",
                remarkable=True,
            ),
        ),
        Form(
            " offloaded tokens after ",
            re.compile(
                rf"Request {_ID} hit (?P<hit>{NUMBER}) offloaded tokens after (?P<computed>{NUMBER}) GPU hit tokens"
            ),
            _offloading,
        ),
        Form(
            " chunks upto ",
            re.compile(
                rf"Request {_ID} offloading (?P<chunks>{NUMBER}) chunks upto (?P<end>{NUMBER}) tokens \(job (?P<job>\d+)\)"
            ),
            # Neither where they begin nor how long they are is printed.
            note("job {job} begins to store {chunks} chunks of its first {end} tokens"),
        ),
        Form(
            "cannot store chunks",
            re.compile(rf"Request {_ID_COLON}: cannot store chunks"),
            note("not stored: there is no room"),
        ),
        Form(
            "Delaying request ",
            re.compile(rf"Delaying request {_ID} since (?P<why>[^\n]{{1,120}})"),
            note("looked up: to be asked again, since {why}"),
        ),
        Form(
            "Offloading manager delayed request",
            re.compile(rf"Offloading manager delayed request {_ID}"),
            note("looked up: the store is still looking, and vLLM will ask again"),
        ),
        Form(
            "no pending",
            re.compile(
                rf"update_state_after_alloc called for req_id={_ID} with num_external_tokens=(?P<count>{NUMBER}) but no"
                r" pending CPU hit"
            ),
            _skipped_load,
        ),
        Form(
            "with no external tokens but",
            re.compile(rf"update_state_after_alloc called for req_id={_ID} with no external tokens but"),
            note("no tokens were allocated to be loaded, though the lookup had pinned some", remarkable=True),
        ),
        Form(
            "Scheduling store of ",
            re.compile(rf"Request {_ID_COLON}: Scheduling store of (?P<blocks>{NUMBER}) blocks to CPU"),
            note("{blocks} blocks are to be stored"),
        ),
        Form(
            "Token matching for ",
            re.compile(
                rf"Token matching for {_ID_COLON}: (?P<matched>{NUMBER}) matched \({NUMBER} blocks\), (?P<new>{NUMBER}) new"
                rf" hits, prompt len (?P<total>{NUMBER})"
            ),
            _hf3fs,
        ),
        Form(
            "update_state_after_alloc",
            re.compile(
                rf"(?P<connector>\w{{1,40}}Connector) update_state_after_alloc: req_id={_ID}"
                rf" num_external_tokens=(?P<count>{NUMBER})"
            ),
            _mooncake_alloc,
        ),
        Form(
            " local blocks(",
            re.compile(rf"req {_ID_COLON}: local blocks\((?P<own>{NUMBER})\) < remote blocks\((?P<other>{NUMBER})\)"),
            note("it has {own} blocks here, and {other} at the other instance: it cannot be received", remarkable=True),
        ),
        Form(
            "expired before sending",
            re.compile(rf"Request {_ID} expired before sending"),
            note("not sent: its time was up", remarkable=True),
        ),
        Form(
            "before releasing blocks",
            re.compile(rf"request_finished\((?P<request>[^{ID_STOPS})]+)\) waiting for (?P<seconds>{NUMBER}) seconds"),
            note("ended: its blocks are kept for {seconds} seconds, for another instance to read"),
        ),
        Form(
            "extended lease",
            re.compile(rf"Heartbeat extended lease for request {_ID}"),
            note("the lease of its blocks is extended"),
        ),
        Form(
            "transfer failed for request",
            re.compile(rf"(?:RDMA )?transfer failed for request {_ID_COLON}"),
            note("the transfer of its KV failed", remarkable=True),
        ),
        Form(
            "TIMED OUT for req",
            re.compile(rf"read TIMED OUT for req {_ID} after (?P<seconds>[\d.]{{1,12}})s"),
            note("the transfer of its KV took longer than {seconds} s, and was given up", remarkable=True),
        ),
        Form(
            "External prefix cache hit rate",
            re.compile(r"External prefix cache hit rate: (?P<rate>\d{1,3}(?:\.\d+)?)%"),
            # A rate over the last interval: no count of any request.
            note("the engine reports an external prefix cache hit rate of {rate} %"),
        ),
        Form("PromptTokenStats(", re.compile(r"PromptTokenStats\([^\n]*"), _prompt_tokens),
    ),
)
