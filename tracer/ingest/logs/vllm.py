"""vLLM's own lines about a request's KV: transfers, leases, preemptions, statistics of a prefill.

The formats are those of `v1/core/sched/scheduler.py`, V0's `core/scheduler.py`, `v1/metrics`, and of the connectors that come
with vLLM 0.32. V1's scheduler prints no preemption.
"""

from __future__ import annotations

import re

from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ingest.logs.line_patterns import ID_STOPS, NUMBER, Reading, Role, always, pattern_of

_ID = rf"(?P<request>[^{ID_STOPS}]*[^{ID_STOPS}.;])"


def _prompt_tokens(match: re.Match[str]) -> Reading:
    values = {name: int(value) for name, value in re.findall(r"\b(\w+)=(-?\d{1,15})\b", match[0])}
    names = {"total": "total", "cached_tokens": "reported", "external_kv_transfer": "from_connector"}
    fields = {field: values[name] for name, field in names.items() if name in values}
    if fields.get("total", 0) < 0:
        del fields["total"]
    return Reading(Role.EVENT, None, Kind.STATS, fields)


def _skipped_load(match: re.Match[str]) -> Reading:
    fields = {
        "start": 0,
        "count": 0,
        "expected": int(match["count"]),
    }  # an event needs a position, and the log has none
    return Reading(
        Role.EVENT, match["request"], Kind.LOAD, fields, connector="SimpleCPUOffloadConnector", error=match[0]
    )


VLLM = (
    pattern_of(
        "Finished sending KV transfer",
        rf"^(?:\[[^\]]*\] )?Finished sending KV transfer for request {_ID}",
        always(Role.EVENT, Kind.SENT),
    ),
    pattern_of(
        "Finished recving KV transfer",
        rf"^(?:\[[^\]]*\] )?Finished recving KV transfer for request {_ID}",
        always(Role.EVENT, Kind.RECEIVED),
    ),
    pattern_of(
        " is preempted by ",
        rf"Sequence group {_ID} is preempted by PreemptionMode",
        always(Role.EVENT, Kind.PREEMPT),
    ),
    pattern_of(
        "Releasing expired KV blocks",
        rf"Releasing expired KV blocks for request {_ID} which were retrieved by {NUMBER} (?:decode|remote) worker\(s\)",
        always(Role.EVENT, Kind.FREE, lease_expired=True),
    ),
    pattern_of(
        " without being sent",
        rf"Request {_ID} timed out after {NUMBER} seconds without being sent",
        always(Role.EVENT, Kind.FREE, lease_expired=True),
    ),
    pattern_of(
        "Potentially invalid KV blocks",
        rf"Potentially invalid KV blocks for unrecognized request {_ID} were retrieved",
        always(Role.EVENT, Kind.READ),
    ),
    pattern_of(
        "no pending",
        rf"update_state_after_alloc called for req_id={_ID} with num_external_tokens=(?P<count>{NUMBER}) but no"
        r" pending CPU hit",
        _skipped_load,
    ),
    pattern_of("PromptTokenStats(", r"PromptTokenStats\([^\n]*", _prompt_tokens),
)
