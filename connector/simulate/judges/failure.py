"""What went wrong in a run."""

from __future__ import annotations

from dataclasses import dataclass

RULE, CRASH, HANG, HITS, BYTES, EVENTS = "rule", "crash", "hang", "hits", "bytes", "kv-events"
REST_BLOCKS, REST_MEMORY, REST_RESET, REST_ROOM = "rest/blocks", "rest/memory", "rest/reset", "rest/room"


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong in a run.

    Attributes:
        kind: who found it. RULE: a rule of the tracer; CRASH, HANG: vLLM; HITS: what a lookup claimed; BYTES: what a request
            has read; REST_...: what was left in the end; EVENTS: what the connector's KV cache events say.
        what: the rule; what the engine died of, without numbers; or what was wrong, equal for the same fault.
        text: the explanation, with this run's numbers.
        details: of a crash or a hang: the traceback, the last events, and what each request waits for.
        where: of a rule that judges in several places, where.
    """

    kind: str
    what: str
    text: str
    details: str = ""
    where: str = ""

    @property
    def id(self) -> str:
        """Equal for failures of the same kind; the name in reports."""
        return f"{self.kind.partition('/')[0]}: {self.what}"
