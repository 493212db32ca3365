"""The judges of a session, under their names: a rule's id, or a rule and the place of several where it judges
(`byte-drift/early`), or one of `OTHERS`; and whether each of them has looked at a run."""

from __future__ import annotations

from kvtrail.connector.simulate.check.coverage import RunCoverage
from kvtrail.connector.simulate.judges.failure import BYTES, CRASH, EVENTS, HANG, HITS, REST, RULE, Failure
from kvtrail.tracer.model.findings import Verdict
from kvtrail.tracer.rules.rule import DeadlineRule
from kvtrail.tracer.rules.rule_set import all_rules

REST_BLOCKS, REST_MEMORY, REST_RESET, REST_ROOM = "rest/blocks", "rest/memory", "rest/reset", "rest/room"
OTHERS = {
    HITS: "lookups that claim what nobody has computed",
    BYTES: "KV that is read and is another's",
    EVENTS: "KV cache events that say what is not so",
    REST_BLOCKS: "KV blocks that are not free when all requests have ended",
    REST_MEMORY: "what the connector remembers when all requests have ended",
    REST_RESET: "a reset when all requests have ended",
    REST_ROOM: "how much a full store holds, when all requests have ended, and whether its workers hold more",
    CRASH: "an engine that dies",
    HANG: "requests that never end",
}
"""What a session judges by beside the rules."""
RULES = {rule.id: rule for rule in all_rules()}
_OF_REST = {
    REST_RESET: ("a reset is refused", "nothing is stored after a reset"),
    REST_BLOCKS: ("blocks of ended requests", "blocks are lost", "vLLM's "),
    REST_ROOM: ("the store has lost room", "workers keep what is evicted"),
}
"""How the names of what is left in the end begin, by judge; any other is of what the connector remembers."""
_BY_ABSENCE = {"load-range/nothing allocated": "probe/seen"}
"""Rules that judge only what a correct connector never does, by the point at which they would see it."""


def judges_of(failure: Failure) -> tuple[str, ...]:
    """Who has found a failure: of a rule that judges in several places, the rule as a whole, too."""
    if failure.kind == RULE:
        return (failure.what, f"{failure.what}/{failure.where}")
    if failure.kind != REST:
        return (failure.kind,)
    for judge, beginnings in _OF_REST.items():
        if failure.what.startswith(beginnings):
            return (judge,)
    return (REST_MEMORY,)


def looked(judge: str, ran: RunCoverage, *, other_writers: bool) -> bool:
    """Whether a judge has looked at something in a run: if not, it could not have found anything. With `other_writers`,
    nobody knows what is stored."""
    if judge in _BY_ABSENCE:
        return bool(ran.reached[_BY_ABSENCE[judge]])
    rule = judge.partition("/")[0]
    if rule in RULES:  # one with a deadline counts what is overdue, and nothing that came in time
        seen = ran.checks.get((rule, Verdict.OK), 0) + ran.checks.get((rule, Verdict.DRIFT), 0)
        return bool(seen) or isinstance(RULES[rule], DeadlineRule)
    match judge:
        case "hits":
            return bool(ran.hits) and not other_writers
        case "bytes":
            return bool(ran.blocks_compared and ran.loads_read)
        case "kv-events":
            return bool(ran.reached["events/stored"])
        case "rest/reset":
            return bool(ran.reached["end/all"] and ran.reached["reset/connector"]) and not other_writers
        case "rest/room":
            return ran.capacity_compared
        case "rest/blocks" | "rest/memory":
            return bool(ran.reached["end/all"])
    return True
