from __future__ import annotations

from kvtrail.tracer.events.events import BlockCheck
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.ledger.computed_contents import LOADED
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import Groups, KnownBy, RequestRule
from kvtrail.tracer.rules.contents import mismatch


class ByteEarly(RequestRule[BlockCheck]):
    """Blocks were read before their load had ended.

    Invariant: when a load counts as ended, in the step that reads it or by the report of an asynchronous one, its blocks hold
    what was computed under their hashes.

    A block is checked once then, and once more at the next step: it was wrong at first and right later, so the copy itself is
    right and only its end was reported too soon, or not waited for. Source: vLLM, `KVConnectorBase_V1.wait_for_layer_load`
    and `get_finished` promise it; the incidents are vLLM #29608 (https://github.com/vllm-project/vllm/issues/29608) and
    #56762 (https://github.com/vllm-project/vllm/pull/56762). Needs fingerprints.
    """

    id = "byte-early"
    severity = Severity.WRONG_OUTPUT
    groups = Groups.EACH
    known_by = KnownBy.BYTES
    level = Level.DETAILED
    classes = ("N3",)
    hint = (
        "The stream of the load is not waited for, `wait_for_layer_load` is skipped, or `get_finished` names a load that runs"
        " on."
    )
    needs_history = False
    explanation = (
        "At {0} {checked} checked, since their load had ended, and {wrong} did not match what had been computed under"
        " their hashes; at the next step they did. So their load went on after it counted as ended.{of_all} {contents}"
    )

    def judge(self, event: BlockCheck, account: Account) -> Judgement:
        if (numbers := mismatch.numbers(event, "early")) is not None:
            return Drift(numbers, [event], healed=event.check_healed)
        if event.check_look != LOADED:
            return None
        return OK if event.check_blocks > event.check_unknown else Unknown.CONTENT

    def values(self, finding: Finding) -> dict[str, str]:
        return mismatch.sentences(finding.numbers, verb="held")
