"""Bugs that need two things to happen to one request, planted in the shelf: a failure and a store, an abort and the same
prompt again, a preemption and another table. `benchmarks/planted_bugs.py` says how many a session finds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from planted.shelf import Known, Shelf


class LeaseOfTheWaitingKept(Shelf):
    """Who is aborted before it has run keeps its lease."""

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        known = self.known.get(request.request_id)
        if known is not None and not known.table:
            known.lease = []
        return super().request_finished(request, block_ids)


class MarkOfARefusedStoreTrusted(Shelf):
    """A block without a slot counts as stored, and a lookup after a preemption trusts the mark."""

    def put(self, known: Known, n: int, keys: list[bytes]) -> bool:
        super().put(known, n, keys)
        return True

    def found(self, request: Any) -> int:
        most = (request.num_tokens - 1) // self.block
        mark = self.of(request).mark if request.num_preemptions else 0
        found: int = min(most, max(super().found(request), mark))
        return found


class TableAppendedOnResume(Shelf):
    """The blocks of a resumed request are appended to those that it had."""

    def resume(self, known: Known, table: list[int], computed: int) -> None:
        known.table += table


class OldTailKeptOnResume(Shelf):
    """A request that resumes with fewer blocks keeps the end of its old table."""

    def resume(self, known: Known, table: list[int], computed: int) -> None:
        old = known.table
        super().resume(known, table, computed)
        known.table += old[len(table) :]


class StoresOfAFailedStepKept(Shelf):
    """What the step of a failed load has computed stays on the shelf."""

    def failed(self, blocks: set[int]) -> None:
        for known in self.known.values():
            if blocks.intersection(known.table):
                known.mark = 0


class StoreOfASharerKept(Shelf):
    """Of a failed load, what the request has stored that loaded is forgotten, and not what others have that share its
    blocks."""

    def failed(self, blocks: set[int]) -> None:
        loading = {each for each, known in self.known.items() if known.loads}
        self.latest = {each: keys for each, keys in self.latest.items() if each in loading}
        super().failed(blocks)


class LeaseOfAFailedLoadKept(Shelf):
    """A lease is kept for another try when a load fails, and forgotten where the request is aborted before that."""

    def update_connector_output(self, connector_output: Any) -> None:
        self.bad = connector_output.invalid_block_ids
        super().update_connector_output(connector_output)

    def loaded(self, known: Known) -> None:
        if self.bad:
            known.loads, known.failed = False, True  # type: ignore[attr-defined]
        else:
            super().loaded(known)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        known = self.known.get(request.request_id)
        if getattr(known, "failed", False) and request.status.name == "FINISHED_ABORTED":
            known.lease = []  # type: ignore[union-attr]
        return super().request_finished(request, block_ids)


class SlotsOfAFailedLoadFreed(Shelf):
    """What could not be loaded leaves the shelf, and its slot is free twice where two requests were about to load it."""

    def failed(self, blocks: set[int]) -> None:
        super().failed(blocks)
        keys = [key for known in self.known.values() if known.loads for key in known.lease if key in self.index]
        self.empty += [self.index[key] for key in keys]
        for key in {*keys}:
            del self.index[key]


class BlocksOfTheAbortedFreed(Shelf):
    """The blocks of an aborted request are given back while they are still to be stored."""

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        keeps, said = super().request_finished(request, block_ids)
        return keeps and request.status.name != "FINISHED_ABORTED", said


class NoFenceOnPreemption(Shelf):
    """The blocks of a preempted request are stored when others have them."""

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        return


class LeaseGivenBackTwice(Shelf):
    """A reset drops all leases; who waits gives its own back once more, which is another's by then."""

    def drop_leases(self) -> None:
        self.users.clear()


class AnswerOfTheFirstLookup(Shelf):
    """Who waits for blocks is answered as at first, and the lease is taken when it gets them."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        known = self.of(request)
        answer = getattr(known, "answer", None)
        if answer is None or answer[0] != (num_computed_tokens, request.num_preemptions):
            given = super().get_num_new_matched_tokens(request, num_computed_tokens)
            answer = (num_computed_tokens, request.num_preemptions), given, known.lease
            known.answer = answer  # type: ignore[attr-defined]
            self.release(known)
        return answer[1]

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        known = self.of(request)
        if num_external_tokens:
            self.take_lease(known, known.answer[2])  # type: ignore[attr-defined]
        super().update_state_after_alloc(request, blocks, num_external_tokens)


class RecordOfTheAbortedKept(Shelf):
    """What is known of an aborted request stays, for whoever has its id next."""

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        known = self.known.get(request.request_id)
        answer = super().request_finished(request, block_ids)
        if known is not None and request.status.name == "FINISHED_ABORTED":
            self.known[request.request_id] = known
        return answer

    kvtrail_keeps = ("known",)


class SlotLostByTwins(Shelf):
    """A block that two requests compute in one step takes two slots, and one of them is lost."""

    def put(self, known: Known, n: int, keys: list[bytes]) -> bool:
        if self.since.get(keys[n]) == self.step and keys[n] in self.index and self.empty:
            self.index[keys[n]] = self.empty.pop()
            self.plan.stores[keys[n]] = known.request.request_id, self.index[keys[n]], known.table[n]
        return super().put(known, n, keys)


SHELF_BUGS: Iterable[str] = [
    each.__name__
    for each in (
        LeaseOfTheWaitingKept, MarkOfARefusedStoreTrusted, TableAppendedOnResume, OldTailKeptOnResume,
        StoresOfAFailedStepKept, StoreOfASharerKept, LeaseOfAFailedLoadKept, SlotsOfAFailedLoadFreed,
        BlocksOfTheAbortedFreed, NoFenceOnPreemption, LeaseGivenBackTwice, AnswerOfTheFirstLookup,
        RecordOfTheAbortedKept, SlotLostByTwins,
    )
]  # fmt: skip
