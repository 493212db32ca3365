"""Known bugs, injectable into any connector: each rule is proven by the bug that it finds. For tests and demos only.

A fault is asked for by name, `Faulty:<fault>:<connector>`, so that no setting can switch one on by accident.
"""

from __future__ import annotations

from typing import Any

from connector.probes import probe_for


class StaleLookup:
    """LMCache #2158: after the first lookup of an epoch the matched length is remembered and handed out as it is.

    https://github.com/LMCache/LMCache/issues/2158. The first answer subtracts the computed tokens; the remembered one
    does not, so that the second lookup of a request that waits after a preemption promises tokens vLLM already has.
    """

    answered_from_memory = False

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]  # the connector class is next
        self._remembered: dict[str, tuple[int, int]] = {}

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        returned, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)  # type: ignore[misc]
        epoch, remembered = self._remembered.get(request.request_id, (-1, 0))
        self.answered_from_memory = epoch == request.num_preemptions
        if self.answered_from_memory:
            return remembered, False  # the call above kept the connector's books current, as LMCache's were
        matched, _ = probe_for(type(self)).lookup(self, request)
        if matched is None and returned is not None:
            matched = num_computed_tokens + returned
        if matched is not None:
            self._remembered[request.request_id] = (request.num_preemptions, matched)
        return returned, is_async


FAULTS: dict[str, type] = {"stale-lookup": StaleLookup}
"""The faults by name; the name is that of the rule which finds it."""


def inject(fault: type, cls: type) -> type:
    """A subclass of a connector class with the fault in front of it."""
    return type(cls.__name__, (fault, cls), {"__module__": "connector", "__doc__": fault.__doc__})
