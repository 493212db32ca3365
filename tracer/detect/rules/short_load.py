from __future__ import annotations

from kvtrail.tracer.detect.account import Account
from kvtrail.tracer.detect.rules import RequestRule
from kvtrail.tracer.model.events import Event, Load
from kvtrail.tracer.model.findings import Drift, Finding, Judgement, Severity, Verdict, clock
from kvtrail.tracer.model.semconv import Kind


class ShortLoad(RequestRule[Event]):
    """A load brought fewer tokens than promised, and nobody told the scheduler.

    Invariant: a load's tokens = those it was meant to bring, on every rank, or the load is reported as failed
    (`get_block_ids_with_load_errors`, `failed_recving`) before the request runs on.

    Source: vLLM, `Scheduler._handle_invalid_blocks` recomputes what is reported; what is not, is taken for computed. The
    incidents are LMCache #1770 (https://github.com/LMCache/LMCache/issues/1770) and vllm-ascend #10561
    (https://github.com/vllm-project/vllm-ascend/issues/10561). Needs a load that says what was expected of it.
    """

    id = "short-load"
    severity = Severity.WRONG_OUTPUT
    classes = ("C7", "C8")
    kinds = frozenset({Kind.LOAD, Kind.SCHEDULE, Kind.REQUEST})
    hint = (
        "The chunk was evicted between lookup and load, or its key was computed otherwise. Pin it, or report the error."
    )

    def judge(self, event: Event, account: Account) -> Judgement:
        if isinstance(event, Load):
            if event.expected is None:
                return None
            if event.count >= event.expected:
                return Verdict.OK
            return _drift(event, event) if event.error is not None else None
        short = account.evidence.short
        if short is None or short.error is not None:
            return None
        return _drift(short, event) if account.complete else Verdict.UNKNOWN

    def explain(self, finding: Finding) -> str:
        load, n = finding.witness[0], finding.numbers
        text = (
            f"The load at {load.label} ({clock(load.at_ns)}, epoch {load.epoch}) was meant to bring {n['expected']} tokens"
            f" and brought {n['loaded']}."
        )
        if len(finding.witness) > 1:
            text += f" At {finding.witness[1].label} the request went on, and no load error had been reported."
        return text


def _drift(load: Load, event: Event) -> Drift:
    numbers = {"expected": load.expected, "loaded": load.count, "rank": load.rank}
    return Drift(numbers, [load] if event is load else [load, event])
