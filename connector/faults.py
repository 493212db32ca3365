"""Known bugs, to be injected into a connector: the four that demos show. The tests have one for each rule, and add them. For
tests and demos only.

In comes a connector class and the name of a fault, `Faulty:<fault>:<connector>`, so that no setting can switch one on by
accident; out comes the class with the fault in front of it.
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
"""Of a lookup: tokens beyond the computed ones, and whether they are loaded asynchronously."""


class Fault(Connector):
    """A known bug. Without a hook overridden it does nothing.

    Attributes:
        answered_from_memory: whether the last lookup was answered without looking; probes read it.
    """

    def alter_answer(self, request: Any, computed: int, returned: int | None, is_async: bool) -> Answer:
        """The answer to a lookup, in place of the connector's."""
        return returned, is_async

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Answer:
        returned, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return self.alter_answer(request, num_computed_tokens, returned, is_async)


class StaleLookup(Fault):
    """LMCache #2158: after the first lookup of an epoch the matched length is remembered and handed out as it is.

    The first answer subtracts the computed tokens; the remembered one
    does not, so that the second lookup of a request that waits after a preemption promises tokens vLLM already has.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._remembered: dict[str, tuple[int, int]] = {}

    def alter_answer(self, request: Any, computed: int, returned: int | None, is_async: bool) -> Answer:
        epoch, remembered = self._remembered.get(request.request_id, (-1, 0))
        self.answered_from_memory = epoch == request.num_preemptions
        if self.answered_from_memory:
            return remembered, False  # the connector's own state is up to date all the same, as LMCache's was
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
    """LMCache #1969: a request that comes back after a preemption is taken for one that was served already."""

    def alter_answer(self, request: Any, computed: int, returned: int | None, is_async: bool) -> Answer:
        return (0 if request.num_preemptions else returned), is_async


class BlocksExchanged(Fault):
    """A load puts the first two blocks of each chunk into each other's place."""

    def load_chunks(self, copies: Sequence[Any]) -> None:
        super().load_chunks([replace(copy, blocks=copy.blocks[1::-1] + copy.blocks[2:]) for copy in copies])


FAULTS: dict[str, type] = {
    "stale-lookup": StaleLookup,
    "over-report": OverReport,
    "under-report": UnderReport,
    "blocks-exchanged": BlocksExchanged,
}
"""The faults under their names. Of the first three the rule of that name is the judge, and cites the incident; bytes that
change are found by `byte-drift`."""


def inject(fault: type, cls: type) -> type:
    """A subclass of a connector class with the fault in front of it."""
    own = {"__module__": "kvtrail.connector", "__doc__": fault.__doc__, "_kvtrail_without_fault": cls}
    return type(cls.__name__, (fault, cls), own)
