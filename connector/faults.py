"""Known bugs to inject into a connector, for tests and demos only. These four are in demos; the tests add one for each rule.

The name `Faulty:<fault>:<connector>` selects the connector class with the fault in front of it. No setting can switch on a
fault by accident.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvtrail.connector.known.probe import probe_for

if TYPE_CHECKING:
    from kvtrail.connector.offload import UntracedOffloadConnector as Connector
else:
    Connector = object  # the connector class comes next among the bases; most faults are for the OffloadConnector

Answer = tuple[int | None, bool]
"""The answer to a lookup: the number of tokens beyond the computed ones, and whether they are loaded asynchronously."""


class Fault(Connector):
    """A known bug. Without an overridden hook it does nothing.

    Attributes:
        answered_from_memory: whether the last lookup was answered from memory; probes read it.
    """

    def alter_answer(self, request: Any, computed: int, returned: int | None, is_async: bool) -> Answer:
        """The answer to a lookup, in place of the connector's."""
        return returned, is_async

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Answer:
        returned, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return self.alter_answer(request, num_computed_tokens, returned, is_async)


class StaleLookup(Fault):
    """LMCache #2158: the matched length of an epoch's first lookup is remembered, and later lookups return it.

    The first answer subtracts the computed tokens, the remembered answer does not. So the second lookup of a request that
    waits after a preemption promises tokens that vLLM already has.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._remembered: dict[str, tuple[int, int]] = {}

    def alter_answer(self, request: Any, computed: int, returned: int | None, is_async: bool) -> Answer:
        epoch, remembered = self._remembered.get(request.request_id, (-1, 0))
        self.answered_from_memory = epoch == request.num_preemptions
        if self.answered_from_memory:
            return remembered, False  # the connector's own state is up to date, as LMCache's was
        matched, _ = probe_for(type(self)).lookup(self, request)
        if matched is None and returned is not None:
            matched = computed + returned
        if matched is not None:
            self._remembered[request.request_id] = (request.num_preemptions, matched)
        return returned, is_async


class OverReport(Fault):
    """A hit is padded to the next block, whether or not the store holds it."""

    def alter_answer(self, request: Any, computed: int, returned: int | None, is_async: bool) -> Answer:
        return (returned + 32 if returned else returned), is_async


class UnderReport(Fault):
    """LMCache #1969: a request that resumes after a preemption is treated as already served."""

    def alter_answer(self, request: Any, computed: int, returned: int | None, is_async: bool) -> Answer:
        return (0 if request.num_preemptions else returned), is_async


class BlocksExchanged(Fault):
    """A load exchanges the first two blocks of each chunk."""

    def load_chunks(self, copies: Sequence[Any]) -> None:
        super().load_chunks([replace(copy, blocks=copy.blocks[1::-1] + copy.blocks[2:]) for copy in copies])


FAULTS: dict[str, type] = {
    "stale-lookup": StaleLookup,
    "over-report": OverReport,
    "under-report": UnderReport,
    "blocks-exchanged": BlocksExchanged,
}
"""The faults by name. A rule of the same name finds each of the first three and cites the incident; `byte-drift` finds the
last one."""


def inject(fault: type, cls: type) -> type:
    """A subclass of a connector class with the fault in front of it."""
    own = {"__module__": "kvtrail.connector", "__doc__": fault.__doc__, "_kvtrail_without_fault": cls}
    return type(cls.__name__, (fault, cls), own)
