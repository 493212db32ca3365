from __future__ import annotations

from kvtrail.tracer.events.events import Index, Pool
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule


class IndexDrift(EngineRule[Index | Pool]):
    """The counts of an index or of a pool do not add up.

    Invariant: applied + declined = published, of an index; free + used = total and both >= 0, of a pool.

    An event may stand for several blocks: what counts are blocks. Source: conservation; the incidents are llm-d #663
    (https://github.com/llm-d/llm-d-kv-cache/pull/663) and TensorRT-LLM #12834
    (https://github.com/NVIDIA/TensorRT-LLM/pull/12834). Needs the event alone.
    """

    id = "index-drift"
    severity = Severity.LEAK
    classes = ("C25", "C14", "C13")
    hint = "Events were dropped because their parent was unknown, or something was counted to the wrong tier or twice."
    needs_history = False

    def judge(self, event: Index | Pool, engine: Engine) -> Judgement:
        if isinstance(event, Index):
            first, second, whole = event.index_applied, event.index_declined, event.index_published
        else:
            first, second, whole = event.pool_used, event.pool_free, event.pool_total
        if first is None or second is None or whole is None:
            return Unknown.PROBE
        if min(first, second) >= 0 and first + second == whole:
            return OK
        return Drift({"first": first, "second": second, "whole": whole}, [event])

    def template(self, finding: Finding) -> str:
        n, is_pool = finding.numbers, finding.witness[0].kind == Kind.POOL
        names = ("used", "free", "in the pool") if is_pool else ("applied", "declined", "published")
        text = f"At {{0}} {{first}} were {names[0]} and {{second}} {names[1]}"
        if min(n["first"], n["second"]) < 0:
            return f"{text}; {names[2]} are {{whole}}. No count can be below 0."
        return f"{text}, which is {n['first'] + n['second']}; {names[2]} are {{whole}}."
