"""The judges of a session, by name: a rule's id, or one of `OTHERS`; and how often each of them could judge."""

from __future__ import annotations

from kvtrail.connector.simulate.check.session import Checked
from kvtrail.connector.simulate.check.trial import CRASH, HANG, RULE, Failure
from kvtrail.connector.simulate.coverage import PLANS
from kvtrail.connector.simulate.observer import BYTES, HITS, REST
from kvtrail.tracer.model.findings import Verdict
from kvtrail.tracer.rules import DeadlineRule, all_rules

REST_BLOCKS, REST_MEMORY, REST_RESET = "rest/blocks", "rest/memory", "rest/reset"
OTHERS = {
    HITS: "lookups that claim what nobody has computed",
    PLANS: "plans that leave out what was promised",
    BYTES: "KV that is read and is another's",
    REST_BLOCKS: "KV blocks that are not free when all requests have ended",
    REST_MEMORY: "what the connector remembers when all requests have ended",
    REST_RESET: "a reset when all requests have ended",
    CRASH: "an engine that dies",
    HANG: "requests that never end",
}
"""What a session judges by beside the rules."""
RULES = {rule.id: rule for rule in all_rules()}
_OF_RESETS = ("a reset is refused", "nothing is stored after a reset")
_OF_BLOCKS = ("blocks of ended requests", "blocks are lost", "vLLM's ")


def judge_of(failure: Failure) -> str:
    """Who has found a failure."""
    if failure.kind == RULE:
        return failure.what
    if failure.kind != REST:
        return failure.kind
    if failure.what.startswith(_OF_RESETS):
        return REST_RESET
    return REST_BLOCKS if failure.what.startswith(_OF_BLOCKS) else REST_MEMORY


def judged(judge: str, checked: Checked, *, other_writers: bool) -> int:
    """How often a judge has looked at something in a session: 0 means that it could not have found anything. With
    `other_writers`, nobody knows what is stored."""
    reached = checked.reached
    if judge in RULES:
        if isinstance(RULES[judge], DeadlineRule):  # it counts what is overdue, and nothing that came in time
            return checked.trials.total()
        return checked.checks[judge, Verdict.OK] + checked.checks[judge, Verdict.DRIFT]
    if judge == HITS:
        return 0 if other_writers else checked.hits
    if judge == PLANS:
        return reached["load/planned-with-positions"]
    if judge == BYTES:
        return checked.loads_read if checked.blocks_compared else 0
    if judge == REST_RESET:
        return 0 if other_writers else reached["reset/connector"]
    if judge in (REST_BLOCKS, REST_MEMORY):
        return reached["end/all"]
    return checked.trials.total()
