"""vLLM's own lines that say something of a request's KV: transfers, leases, preemptions, the statistics of a prefill.

The formats are those of `v1/core/sched/scheduler.py`, the NIXL and Mooncake connectors' workers, V0's `core/scheduler.py` and
`v1/metrics`. V1's scheduler prints no preemption.
"""

from __future__ import annotations

import re

from kvtrail.tracer.ingest.logs.readings import NUMBER, Form, Reading, Role, Table, event, note
from kvtrail.tracer.model.semconv import Kind

_ID = r"(?P<request>[^\s,]+)"


def _prompt_tokens(match: re.Match[str]) -> Reading:
    said = {name: int(value) for name, value in re.findall(r"\b(\w+)=(-?\d{1,15})\b", match[0])}
    names = {"total": "total", "cached_tokens": "reported", "external_kv_transfer": "from_connector"}
    fields = {field: said[name] for name, field in names.items() if name in said}
    if fields.get("total", 0) < 0:
        del fields["total"]
    printed = ", ".join(f"{name} {value}" for name, value in said.items())
    negative = any(value < 0 for value in said.values())
    return Reading(Role.EVENT, f"the statistics of a prefill: {printed}", None, Kind.STATS, fields, remarkable=negative)


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
            event(Kind.PREEMPT, "preempted: its blocks are taken away"),
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
            "External prefix cache hit rate",
            re.compile(r"External prefix cache hit rate: (?P<rate>\d{1,3}(?:\.\d+)?)%"),
            # A rate over the last interval: no count of any request.
            note("the engine reports an external prefix cache hit rate of {rate} %"),
        ),
        Form("PromptTokenStats(", re.compile(r"PromptTokenStats\([^\n]*"), _prompt_tokens),
    ),
)
