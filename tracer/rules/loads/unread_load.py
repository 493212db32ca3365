"""unread-load: a load from another engine is reported as received before its bytes are there."""

from __future__ import annotations

from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.events import Alloc, Notification, Received, Xfer, XferOp, XferState
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity
from kvtrail.tracer.rules import EngineRule

MAX_LOADS = 10_000
"""Open loads with reads that are remembered."""


class Reads:
    """The reads that this process has recorded for open asynchronous loads.

    Attributes:
        readers: connectors, by name, with workers in this process that have recorded reads.
    """

    def __init__(self) -> None:
        self.readers: set[str] = set()
        self._open: BoundedDict[str, tuple[Alloc, list[Xfer]]] = BoundedDict(MAX_LOADS)
        """By request: its load, and the reads for it that have not ended."""

    def of(self, request: str, load: Alloc) -> list[Xfer] | None:
        """The reads for a load that have not ended; None if none was recorded, nor that none is needed."""
        known = self._open.get(request)
        return known[1] if known is not None and known[0] is load else None

    def _enter_xfer(self, event: Xfer, engine: Engine) -> None:
        if event.xfer_op != XferOp.READ:
            return
        self.readers.add(event.connector)
        if (reads := self._begun(event, engine)) is None:
            return
        if event.xfer_state == XferState.POSTED:
            reads.append(event)
        else:  # who ends all of a request's reads at once need not say which
            ended = [each for each in reads if (each.rank, each.peer_rank) == (event.rank, event.peer_rank)]
            reads[:] = [each for each in reads if each not in ended[:1]] if ended else []

    def _enter_notification(self, event: Notification, engine: Engine) -> None:
        self._begun(event, engine)  # that nothing is needed, or that another engine is to write

    def _enter_received(self, event: Received, engine: Engine) -> None:
        self._open.pop(event.request or "", None)

    def _begun(self, event: Xfer | Notification, engine: Engine) -> list[Xfer] | None:
        """The reads for the event's load that have not ended; None if it has none."""
        request = event.request or ""
        load = engine.loads.get(request)
        if load is None:
            return None
        if (reads := self.of(request, load)) is None:
            self._open[request] = load, (reads := [])
        return reads


class UnreadLoad(EngineRule[Received]):
    """A load is reported as received before its reads have ended, or without any.

    Invariant: when an asynchronous load is reported as received, and not as failed, each read of another engine's blocks that
    was begun for it has ended, and at least one was begun, or a notification says that none is needed.

    Only where the workers' reads and the report come from one process is their order known. That a load has no read at all
    counts only if the same connector has recorded reads in that process before, and loads from other engines alone
    (`receives_once`). Of a read that has failed `short-load` says
    more, and blocks that are reported as not loaded are computed. Source: vLLM, `NixlBaseConnectorWorker._pop_done_transfers`
    reports a request once none of its transfers is under way; the incident is SGLang #39846
    (https://github.com/sgl-project/sglang/issues/39846). Needs every event of the engine during the load, and a connector
    with a probe that shows its reads.
    """

    id = "unread-load"
    severity = Severity.WRONG_OUTPUT
    classes = ("N3",)
    hint = (
        "The end of one of several reads, or of their posting, is taken for the end of the load: wait for all of them."
    )

    State = Reads

    def judge(self, event: Received, engine: Engine) -> Judgement:
        request, known = event.request or "", engine.states[Reads]
        alloc = engine.loads.get(request)
        if event.failed or alloc is None or request not in engine.met or alloc.connector not in known.readers:
            return None
        if any(error.sequence > alloc.sequence for error in engine.invalid.values()):
            return None
        reads = known.of(request, alloc)
        if reads is None and not alloc.has(Capability.RECEIVES_ONCE):
            return None  # it may have loaded from a store of its own
        if reads is None:
            return Drift({"allocated": alloc.allocated, "reads": 0}, [alloc, event])
        if not reads:
            return OK
        return Drift({"allocated": alloc.allocated, "reads": len(reads), "rank": reads[0].rank}, [reads[0], event])

    def template(self, finding: Finding) -> str:
        if finding.numbers["reads"]:
            return (
                "At {0} a read of another engine's blocks began on rank {rank}. At {1} the load of {allocated} tokens was"
                " reported as received, and of its reads {reads} had not ended."
            )
        return (
            "At {0} a load of {allocated} tokens began. At {1} it was reported as received, and no read of another engine's"
            " blocks had begun for it."
        )
