"""Other bugs that a rule finds than the one that is named like it: each says in `rule` which rule that is."""

from __future__ import annotations

from typing import Any

from faults.fault import Fault
from faults.reports import ShortLoad
from kvtrail.tracer.events.capabilities import Capability


class _Variant(Fault):
    rule = ""


class HandoffOfferedAgain(_Variant):
    """vLLM #53250: what another engine handed on is offered again after a preemption, like chunks of a store. For the
    OffloadingConnector."""

    rule = "duplicate-load"
    kvtrail_capabilities = (Capability.RECEIVES_ONCE,)


class HandoffPreempted(_Variant):
    """vLLM #48141: a connector that hands requests on does not ask vLLM to compute them again where a preemption has taken
    their blocks (`requires_kv_delivery`). For the OffloadConnector."""

    rule = "refused-handoff"
    kvtrail_capabilities = (Capability.HANDS_ON,)

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, Any]:
        super().request_finished_all_groups(request, block_ids)
        return any(block_ids), None


class ResetIgnored(_Variant):
    """vLLM #41956: a connector that hides what it matches clears nothing when it is reset. For the OffloadingConnector."""

    rule = "reset-hit"

    def reset_cache(self) -> None:  # type: ignore[override]  # vLLM allows to answer nothing
        return None


class ShortLoadFails(ShortLoad):
    """LMCache #4133: a load brings less than was promised, and the engine dies of it in the same step."""

    rule = "failed-call"
    _loads = False

    def alter_plan(self, plan: Any, output: Any) -> None:
        super().alter_plan(plan, output)
        self._loads = bool(plan.loads)

    def update_connector_output(self, connector_output: Any) -> None:
        super().update_connector_output(connector_output)
        if self._loads:
            raise RuntimeError("the load has brought other tokens than were asked for")


class StoreAfterEnd(_Variant):
    """A request's last store is planned once more, some steps after its end. For the OffloadConnector."""

    rule = "plan-blocks"
    _later = 40
    """Steps; in these its blocks are given to others."""

    def prepare(self) -> None:
        self._last: dict[str, Any] = {}
        self._late: dict[str, int] = {}
        self._step = 0

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, Any]:
        if request.request_id in self._last:
            self._late[request.request_id] = self._step + self._later
        return super().request_finished_all_groups(request, block_ids)

    def alter_plan(self, plan: Any, output: Any) -> None:
        self._step += 1
        self._last.update((copy.request_id, copy) for copy in plan.stores)
        for request_id in [each for each, step in self._late.items() if step == self._step]:
            plan.stores.append(self._last.pop(request_id))
            del self._late[request_id]


class GroupsExchanged(_Variant):
    """The blocks of one KV cache group are copied as those of the other. For the
    OffloadingConnector, with two groups."""

    rule = "plan-blocks"

    def alter_plan(self, plan: Any, output: Any) -> None:
        for job in plan.load_jobs.values():
            spec = job.dst_spec
            first = spec.group_sizes[0]
            spec.block_ids[:] = [*spec.block_ids[first:], *spec.block_ids[:first]]


class GroupShifted(_Variant):
    """vLLM #46694's kind: the table of a KV cache group is read a block further. For the OffloadingConnector, with two
    groups."""

    rule = "plan-blocks"

    def alter_plan(self, plan: Any, output: Any) -> None:
        for job in plan.load_jobs.values():
            spec = job.dst_spec
            *others, last = spec.block_indices
            spec.block_indices = type(spec.block_indices)([*others, last + 1])


class GroupLoadFails(_Variant):
    """vLLM #47812's kind: a load fails in one KV cache group, and the request goes on as if it had not. For the
    OffloadingConnector, with two groups."""

    rule = "failed-load-used"

    def prepare(self) -> None:
        self._loaded: dict[str, int] = {}

    def alter_plan(self, plan: Any, output: Any) -> None:
        for job in plan.load_jobs.values():
            self._loaded[job.req_id] = int(job.dst_spec.block_ids[-1])  # of the last group

    def update_connector_output(self, connector_output: Any) -> None:
        super().update_connector_output(connector_output)
        received = connector_output.finished_recving or ()
        connector_output.invalid_block_ids = {self._loaded.pop(each) for each in received if each in self._loaded}


class AsyncLoadFails(GroupLoadFails):
    """The same of an asynchronous load with one KV cache group. For the OffloadingConnector."""


class FailedReceive(_Variant):
    """An asynchronous load is reported as failed, without its blocks, after the scheduler has looked for that: the request
    goes on behind it. For the OffloadingConnector, with two groups."""

    rule = "failed-load-used"

    def update_connector_output(self, connector_output: Any) -> None:
        super().update_connector_output(connector_output)
        connector_output.failed_recving = set(connector_output.finished_recving or ())


class LongestGroupHit(_Variant):
    """vLLM #50359's kind: what full attention has is answered, though a window's blocks are held elsewhere. For the
    OffloadingConnector, with two groups."""

    rule = "partial-hit"

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        scheduler: Any = self.connector_scheduler  # type: ignore[attr-defined]  # of the OffloadingConnector
        scheduler._sliding_window_lookup = lambda keys, *_, **__: len(keys)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)


class ReceivedUnasked(_Variant):
    """vLLM #51864: a child of a MultiConnector that was given 0 tokens to load reports them as received."""

    rule = "stray-completion"
    _unasked: str | None = None

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._unasked = request.request_id

    def alter_report(self, report: Any) -> None:
        if self._unasked is not None:
            report.finished_recving = (report.finished_recving or set()) | {self._unasked}


class ReceivedLate(_Variant):
    """vLLM #45628: a load is reported when the request has ended and its blocks are freed."""

    rule = "stray-completion"
    _ended: str | None = None

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, Any]:
        self._ended = request.request_id
        return super().request_finished_all_groups(request, block_ids)

    def alter_report(self, report: Any) -> None:
        if self._ended is not None:
            report.finished_recving = (report.finished_recving or set()) | {self._ended}
