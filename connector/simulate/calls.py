"""Observes the calls between vLLM's scheduler and a connector in a run, for the workers, the aborts and the observer.

It observes calls instead of recorded events: the workers answer during a call, and the recording itself is under test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Load(NamedTuple):
    """A load that an allocation requests: tokens [start, end), the blocks of the first KV cache group that they go into,
    whether the load runs between steps, and the blocks of each group."""

    start: int
    end: int
    blocks: tuple[int, ...]
    is_async: bool
    of_groups: tuple[tuple[int, ...], ...] = ()

    @property
    def all_blocks(self) -> set[int]:
        """The blocks of all groups; each block belongs to one group."""
        return {block for group in self.of_groups for block in group}


class Calls:
    """Listens to the calls of one connector object on the scheduler's side. The object's own methods are replaced; what they
    return is not. Without a connector there are no calls.

    Attributes:
        answers: the last answer of each request that has not ended: tokens or None, and whether asynchronous.
        loads: the latest load of each such request.
        failed: by request with a failed load, or with blocks of another request's failed load: the blocks that failed or
            were computed from failed ones.
        on_lookup: called after each lookup with the request, the computed tokens, and the answer.
        on_load: called before the connector is notified of an allocation to load into, with the request and the load.
        on_reset: called with the answer of `reset_cache`.
        on_end: called with a request before the connector is notified of its end.
        on_events: called after each step with the KV cache events that the connector has reported.
    """

    def __init__(self, connector: Any | None, block_sizes: Sequence[int]) -> None:
        """`block_sizes`: tokens per block of each KV cache group."""
        self.answers: dict[str, tuple[int | None, bool]] = {}
        self.loads: dict[str, Load] = {}
        self.failed: dict[str, set[int]] = {}
        self.on_lookup: list[Callable[[Any, int, int | None], None]] = []
        self.on_load: list[Callable[[Any, Load], None]] = []
        self.on_reset: list[Callable[[bool | None], None]] = []
        self.on_end: list[Callable[[Any], object]] = []
        self.on_events: list[Callable[[Sequence[Any]], None]] = []
        self._block_sizes = block_sizes
        self._computed: dict[str, int] = {}
        if connector is None:
            return
        self._look_up, self._allocate = connector.get_num_new_matched_tokens, connector.update_state_after_alloc
        self._reset, self._take_events = connector.reset_cache, connector.take_events
        connector.get_num_new_matched_tokens = self._looked_up
        connector.update_state_after_alloc = self._allocated
        connector.reset_cache, connector.take_events = self._reset_done, self._events_taken
        for name in ("request_finished", "request_finished_all_groups"):
            if (plain := getattr(connector, name, None)) is not None:
                setattr(connector, name, self._ending(plain))

    def _looked_up(self, request: Any, computed: int) -> tuple[int | None, bool]:
        answer: tuple[int | None, bool] = self._look_up(request, computed)
        self.answers[request.request_id] = answer
        self._computed[request.request_id] = computed
        for listen in self.on_lookup:
            listen(request, computed, answer[0])
        return answer

    def _allocated(self, request: Any, blocks: Any, external: int) -> Any:
        if external:
            start = self._computed[request.request_id]
            end = start + external
            tables = zip(blocks.get_block_ids(), self._block_sizes, strict=True)
            into = tuple(tuple(table[start // size : -(-end // size)]) for table, size in tables)
            load = Load(start, end, into[0], self.answers[request.request_id][1], into)
            self.loads[request.request_id] = load
            for listen in self.on_load:
                listen(request, load)
        return self._allocate(request, blocks, external)

    def _reset_done(self) -> bool | None:
        succeeded: bool | None = self._reset()
        for listen in self.on_reset:
            listen(succeeded)
        return succeeded

    def _events_taken(self) -> Sequence[Any]:
        events = [*self._take_events()]
        for listen in self.on_events:
            listen(events)
        return events

    def _ending(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def ending(request: Any, block_ids: Any) -> Any:
            for listen in self.on_end:
                listen(request)
            for held in (self.answers, self.loads, self._computed, self.failed):
                held.pop(request.request_id, None)
            return plain(request, block_ids)

        return ending
