from __future__ import annotations

from kvtrail.tracer.events.cache_groups import part_of_block
from kvtrail.tracer.events.events import Schedule
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity
from kvtrail.tracer.rules import RequestRule


class ResumePoint(RequestRule[Schedule]):
    """The scheduler resumes at a different token than the connector was asked to load up to.

    Invariant: n = c + x for the first step after an admission, where n is the step's first token, c the computed tokens
    of the lookup and x the external tokens of the allocation; n = N - 1 if c + x = N (an asynchronous full hit: the last
    token is computed again). With a recurrent KV cache group and x = 0, n < c + b, where b is the block size. vLLM asks
    with the whole blocks of a hit that ends within a block, and keeps the rest of it if nothing is to be loaded; and where
    the connector supports it, it asks with the longest hit of any group, and goes back to the one that all groups share.

    A load that failed, and said so, may begin anywhere. Source: vLLM, `Scheduler.schedule` and
    `Scheduler._update_waiting_for_remote_kv`; the incident is RBLN #1009
    (https://github.com/RBLN-SW/vllm-rbln/pull/1009). Needs every event of the request since its last lookup.
    """

    id = "resume-point"
    severity = Severity.CRASH
    classes = ("C4", "C2")
    hint = (
        "Something changed the computed tokens between lookup and first step: a match below the block size, a hit that"
        " was extended after the lookup, a load that failed without saying so."
    )
    explanation = (
        "At {0} {computed} tokens were computed, and at {1.label} {allocated} external tokens were allocated, so the first"
        " step must begin at {expected}. At {2} it begins at {begins}."
    )

    def judge(self, event: Schedule, account: Account) -> Judgement:
        evidence = account.evidence
        if evidence.schedule is not None or evidence.load_failed or event.epoch != account.epoch:
            return None
        if account.missing is not None:  # the allocation itself may be lost, and the rule apply all the same
            return account.missing
        # of a MultiConnector, the allocation for the chosen child
        alloc = max(evidence.allocs.values(), key=lambda a: a.allocated, default=None)
        lookup = None if alloc is None else account.last_lookup(alloc.connector_id)
        if alloc is None or lookup is None:
            return None
        expected = lookup.computed + alloc.allocated
        if expected > lookup.total:
            return None  # more than there is of the request: over-report judges it
        # A prompt of one token: none counts as computed after the load.
        asked_again = lookup.request_sequence > alloc.request_sequence
        if expected == alloc.total and (lookup.is_async or asked_again):
            expected -= 1
        if event.computed == expected:
            return OK
        part = part_of_block(event.groups, event.block_size)
        if part > 1 and not alloc.allocated and (event.computed or 0) < expected + part:
            return OK
        numbers = {
            "computed": lookup.computed,
            "allocated": alloc.allocated,
            "expected": expected,
            "begins": event.computed,
        }
        return Drift(numbers, [lookup, alloc, event])
