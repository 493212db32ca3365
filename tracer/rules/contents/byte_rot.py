from __future__ import annotations

from kvtrail.tracer.events.events import BlockCheck
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import Groups, KnownBy, RequestRule
from kvtrail.tracer.rules.contents import mismatch


class ByteRot(RequestRule[BlockCheck]):
    """A block changed though nothing was to write to it.

    Invariant: while a block has the same hash, and no step, load or copy over it is known, its content stays what it was.

    A full block is never written again: what follows goes into the next one. So what changes it is a stray write, or one that
    came too late: a transfer for the block's former owner, or bytes at a wrong address. Only a change from right
    to wrong counts. Source: vLLM, `BlockPool.cache_full_blocks` gives a block its hash for as long as it is held or free; the
    incident is vLLM #56104 (https://github.com/vllm-project/vllm/pull/56104). Needs fingerprints. A held block is
    checked when a request takes it over and, one at random, in every hundredth step of a running request, with
    `fingerprints: all` in every fourth.
    """

    id = "byte-rot"
    severity = Severity.WRONG_OUTPUT
    groups = Groups.EACH
    known_by = KnownBy.BYTES
    level = Level.DETAILED
    classes = ("N10",)
    hint = "A transfer for a request that is gone still writes, or a copy uses a wrong address: look at what ran in between."
    needs_history = False
    explanation = (
        "At {0} {checked} checked again, and {wrong} had changed since the last check, though no step, load or copy over"
        " them is known.{of_all} {contents}"
    )

    def judge(self, event: BlockCheck, account: Account) -> Judgement:
        if (numbers := mismatch.numbers(event, "rot")) is not None:
            return Drift(numbers, [event], healed=event.check_healed)
        if event.check_look not in ("held", "admitted"):
            return None
        return OK if event.check_blocks > event.check_unknown else Unknown.CONTENT

    def values(self, finding: Finding) -> dict[str, str]:
        return mismatch.sentences(finding.numbers)
