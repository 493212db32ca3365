"""Judges a run on the bare scheduler without a recording and without a probe: by the tokens that were ever computed, by the
KV that requests read, and by what is left when all of them have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kvtrail.connector.known import has_other_writers, overrides, part_of
from kvtrail.connector.known.fake import reports_transfers
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.simulate.calls import Calls
from kvtrail.connector.simulate.judges import capacity, leftovers
from kvtrail.connector.simulate.judges.failure import (
    BYTES,
    EVENTS,
    HITS,
    REST_BLOCKS,
    REST_MEMORY,
    REST_RESET,
    REST_ROOM,
    Failure,
)
from kvtrail.connector.simulate.judges.kv_events import KVEvents
from kvtrail.connector.simulate.scenario import Arrival
from kvtrail.connector.simulate.workers.own_worker import OwnWorker
from kvtrail.tracer.model.words import some

KEEPS = "kvtrail_keeps"
"""Attribute of a connector's class: names of attributes that may remember requests after their end."""
FLUSH = 64
"""Number of requests that arrive when all others have ended, to tell a memory of the latest requests from a leak."""
UNBOUNDED = 1000
"""Maximum number of ended requests that a bounded memory may hold."""
LISTED = 8
"""Number of ended requests for which a lookup is compared with the KV cache events."""
PATIENCE = 3
"""Number of times that the same prompt may arrive again until a lookup finds it."""


class Observer:
    """Watches one connector object of a bare scheduler.

    Attributes:
        seen: the failures.
        capacity_compared: whether the store was full in the end, and its capacity was compared with that of a new one.
        kv_events: the judge of its KV cache events.
        asked_of_failed: the number of lookups of prompts that a step had computed, in part, from a failed load.
    """

    def __init__(self, stage: BareScheduler, connector: Any) -> None:
        self._stage, self._connector = stage, connector
        self._plain = getattr(connector, "_kvtrail_plain", type(connector))
        is_whole = connector is stage.connectors[0]
        self._calls = stage.calls if is_whole else Calls(connector, stage.block_sizes)
        self._calls.on_lookup.append(self._looked_up)
        self._calls.on_reset.append(self._was_reset)
        self._calls.on_end.append(self._ending)
        stage.observers.append(self._stepped)
        self._has_other_writers = has_other_writers(self._plain)
        self._resets, self._reports_events = (overrides(self._plain, name) for name in ("reset_cache", "take_events"))
        self._ignored = frozenset(getattr(self._plain, KEEPS, ()))
        self._at_first = leftovers.temporary(connector, self._ignored)
        self._prefixes = stage.shared.prefixes
        self._computed: set[int] = set()
        """The prefixes whose KV some request has held since the connector's last reset."""
        self._entered: dict[str, int] = {}
        self._reset_step: int | None = None
        self._ended: dict[str, str] = {}
        """The outcome of each ended request, the latest last."""
        self._latest: deque[Any] = deque(maxlen=LISTED)
        """vLLM's objects of the latest ended requests."""
        self._hit: tuple[int, int, Any] = (0, 0, None)
        """The largest hit: its number of tokens, the end of its prefix, and its request."""
        self.seen: dict[tuple[str, str], Failure] = {}
        self.capacity_compared = False
        self.asked_of_failed = 0
        self.kv_events = KVEvents(partial(self._note, EVENTS), stage.hash_block_size)
        self._events: list[Any] = []
        """KV cache events of this step, which may report blocks that the step itself computes."""
        self._calls.on_events.append(self._events.extend)

    # What lookups claim.

    def _looked_up(self, request: Any, computed: int, returned: int | None) -> None:
        prefixes, worker = self._prefixes.of(request).tolist(), self._stage.worker
        if worker is not None and worker.model is not None and returned is not None:
            self.asked_of_failed += not worker.model.of_failed.isdisjoint(prefixes[computed : request.num_tokens - 1])
        if not returned or returned < 0 or computed + returned > request.num_tokens or self._has_other_writers:
            return  # rules judge such answers; with other writers, nobody knows what is stored
        self.kv_events.looked_up(request, computed, returned, self._stage.steps)
        end = computed + returned
        if prefixes[end - 1] in self._computed:
            self._hit = max(self._hit, (returned, end, request), key=lambda hit: hit[0])
            return
        known = next((at for at in range(end, 0, -1) if prefixes[at - 1] in self._computed), 0)
        since = "" if self._reset_step is None else f" since the connector was reset before step {self._reset_step}"
        self._note(
            HITS,
            "tokens that nobody has computed",
            f"In step {self._stage.steps} {request.request_id} was looked up with {computed} of its {request.num_tokens}"
            f" tokens computed, and the connector answered {returned}: it claims the prefix up to token {end}. But only"
            f" {known} tokens of this prefix{_identity(request)} were ever computed{since}.",
        )

    def _stepped(self, output: Any, report: Any) -> None:
        """Enter the prefixes that the step's requests hold now. After a failed load, they hold no KV there."""
        invalid, blocks_of = report.invalid_block_ids, self._stage.scheduler.kv_cache_manager.get_block_ids
        for request_id in output.num_scheduled_tokens:
            request = self._stage.scheduler.requests.get(request_id)
            if request is not None and (not invalid or invalid.isdisjoint(blocks_of(request_id)[0])):
                self._enter(request)
        self.kv_events.take(self._events, self._stage.steps)
        self._events.clear()
        worker = self._stage.worker
        if worker is not None and worker.model is not None:
            for text in worker.model.wrong:
                self._note(BYTES, "a request has read KV that is not its own", f"In step {self._stage.steps}, {text}")

    def _ending(self, request: Any) -> None:
        outcome = request.status.name.removeprefix("FINISHED_").lower()
        if (
            outcome != "aborted" or request.request_id in self._entered
        ):  # it has run: what it counts as computed is there
            self._enter(request)
        self._entered.pop(request.request_id, None)
        self._ended.pop(request.request_id, None)
        self._ended[request.request_id] = outcome
        self._latest.append(request)

    def _enter(self, request: Any) -> None:
        from vllm.v1.request import RequestStatus

        if request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
            return  # its computed tokens are still being loaded
        end = min(request.num_computed_tokens, request.num_tokens)
        begin = self._entered.get(request.request_id, 0)
        if end < begin:
            begin = 0
        self._computed.update(self._prefixes.of(request)[begin:end].tolist())
        if self._reports_events:
            self.kv_events.computed(request, begin, end)
        self._entered[request.request_id] = end

    def _was_reset(self, succeeded: bool | None) -> None:
        """Forget all prefixes but those of running requests, which may be stored again."""
        if succeeded is False or not self._resets:
            return
        self._computed.clear()
        self._entered.clear()
        self.kv_events.clear()
        self._reset_step = self._stage.steps
        for request in self._stage.scheduler.running:
            self._enter(request)

    # What is left.

    def rest(
        self,
        run: Callable[[Sequence[Arrival]], None],
        capacity_when_new: Callable[[bool], capacity.Capacity] | None = None,
    ) -> None:
        """When all requests have ended, check what is left; then reset the connector, and check that it has forgotten its
        contents and still stores. `run` runs some more requests until all of their transfers have ended. With
        `capacity_when_new`, also compare the store's capacity with its capacity when it was new."""
        run(())
        if self._keeps_blocks():
            return
        if self._hears_of_ends():
            self._counted()
            self._remembered(run)
        if self._connector is not self._stage.connectors[0]:
            return  # another child may have stored what a lookup finds
        self._lists(run)
        if capacity_when_new is not None and not self._has_other_writers:
            self._has_capacity(run, capacity_when_new)
        if not self._stage.scheduler.has_unfinished_requests():
            self._forgets(run)

    def _keeps_blocks(self) -> bool:
        scheduler = self._stage.scheduler
        kept = list(scheduler.requests)
        if kept:
            nobody = "; it overrides neither `get_finished` nor `get_transfer_results`, so nobody can"
            self._note(
                REST_BLOCKS,
                "blocks of ended requests are not given back",
                f"All requests have ended, and {some(len(kept), 'request')} still {'keeps' if len(kept) == 1 else 'keep'} "
                f"blocks: {_names(kept, self._ended)}. The connector kept them when the request ended (`request_finished`"
                " answered True, or a load was under way), and its workers never reported them as sent or received"
                f"{'' if reports_transfers(self._plain) else nobody}.",
            )
            return True
        pool = scheduler.kv_cache_manager.block_pool
        free, total = pool.get_num_free_blocks(), pool.num_gpu_blocks - 1
        if free != total:
            self._note(
                REST_BLOCKS,
                "blocks are lost",
                f"All requests have ended and {free} of {total} KV blocks are free: somebody holds the other {total - free}.",
            )
        stray = {
            name: sorted(map(str, held))
            for name in ("finished_recving_kv_req_ids", "failed_recving_kv_req_ids")
            if (held := getattr(scheduler, name, ()))
        }
        for name, ids in stray.items():
            self._note(
                REST_BLOCKS,
                f"vLLM's {name} is not empty",
                f"All requests have ended, and vLLM's scheduler still has reports of loads of {_names(ids, self._ended)}.",
            )
        return bool(free != total or stray)

    def _hears_of_ends(self) -> bool:
        """Whether its workers can tell the connector which transfers have ended: the general fake makes no metadata."""
        plain: Any = self._plain
        own = isinstance(self._stage.worker, OwnWorker) or part_of(plain, "fake") is not None
        return own or not overrides(plain, "build_connector_worker_meta")

    def _counted(self) -> None:
        """Check the probe's counts, and the attributes that are temporary by their names."""
        for name, count in self._connector._kvtrail.temporary(self._connector).items():
            if count:
                self._note(
                    REST_MEMORY,
                    f"{name} that the probe counts",
                    f"All requests have ended, and the probe still counts {count} {name}.",
                )
        for place, size in leftovers.temporary(self._connector, self._ignored).items():
            if size > (first := self._at_first.get(place, 0)):
                self._note(
                    REST_MEMORY,
                    f"{place} is not as it was",
                    f"All requests have ended, and `{place}` holds or counts {size}, where it was {first} before the first"
                    " request. By its name it is temporary.",
                )

    def _remembered(self, run: Callable[[Sequence[Arrival]], None]) -> None:
        """Check for requests that the connector remembers after their end, unless it remembers just the latest ones."""
        before, ended = dict(self._ended), list(self._ended)
        held = self._held(before)
        suspects = {place: ids for place, ids in held.items() if ids != set(ended[len(ended) - len(ids) :])}
        whole = {place: ids for place, ids in held.items() if len(ids) > UNBOUNDED}
        if suspects:
            others = tuple(Arrival(f"rest-{n}", ((f"rest-{n % (FLUSH // 2)}", 90),), 1) for n in range(FLUSH))
            run(others)
            now = self._held(self._ended)
            news = {each.id for each in others}
            suspects = {
                place: ids & now.get(place, set())
                for place, ids in suspects.items()
                if not news <= now.get(place, set()) and ids & now.get(place, set())
            }
        for place, ids in (suspects | whole).items():
            why = "It has not held on to the others, so it is no memory of the latest requests"
            if place in whole:
                why = f"A memory of more than {UNBOUNDED} requests grows for ever"
            self._note(
                REST_MEMORY,
                f"{place} remembers ended requests",
                f"All requests have ended, and `{place}` still holds {len(ids)} of {len(before)}:"
                f" {_names([each for each in ended if each in ids], before)}. {why}. (`{KEEPS}`, on the connector's class,"
                " names attributes that may remember.)",
            )

    def _held(self, ended: dict[str, str]) -> dict[str, set[str]]:
        return leftovers.held(self._connector, ended.keys() - self._stage.scheduler.requests.keys(), self._ignored)

    def _has_capacity(
        self, run: Callable[[Sequence[Arrival]], None], when_new: Callable[[bool], capacity.Capacity]
    ) -> None:
        """Check that the store has its old capacity, and that its workers free what it evicts."""

        def compared(at_once: bool) -> capacity.Capacity:
            self.capacity_compared = True
            new = when_new(at_once)
            if (text := capacity.not_given_back(new)) is not None:
                self._note(REST_ROOM, "workers keep what is evicted", text)
            return new

        try:
            text = capacity.lost(self._stage, run, compared)
        except capacity.Unserved:
            return  # a hang, which is reported by itself
        if text is not None:
            self._note(REST_ROOM, "the store has lost room", text)

    def _lists(self, run: Callable[[Sequence[Arrival]], None]) -> None:
        """Check that lookups find the blocks that KV cache events list as stored, when all requests have ended."""
        found: list[int] = []

        def looked_up(_: Any, computed: int, returned: int | None) -> None:
            found.append(computed + (returned or 0))

        self._calls.on_lookup.append(looked_up)
        for number, request in enumerate(list(self._latest)):
            if not (end := self.kv_events.listed(request)):
                continue
            self._stage.scheduler.reset_prefix_cache()
            found.clear()
            tokens = [*list(request.all_token_ids)[:end], 3]  # of a prompt, the last token is computed in any case
            self._add(f"listed-{number}", tokens, request)
            run(())
            if (most := max(found, default=0)) < end:
                self._note(
                    EVENTS,
                    "a block that events have stored is not found",
                    f"All requests have ended. Events list the first {end} tokens of {request.request_id} as stored, and a"
                    f" lookup finds {most}: a router sends such requests here for nothing.",
                )
                return

    def _forgets(self, run: Callable[[Sequence[Arrival]], None]) -> None:
        """Check that a reset succeeds when all requests have ended, and that the largest hit is stored and found again."""
        returned, end, request = self._hit
        if request is None or not self._resets:
            return
        scheduler = self._stage.scheduler
        if not scheduler.reset_prefix_cache(reset_connector=True):
            self._note(
                REST_RESET,
                "a reset is refused although nothing is left to do",
                "All requests have ended, and the connector refuses to reset its cache (`reset_cache` answered False).",
            )
            return
        # The hit fits into the store; more of the request may not. The second step tells a connector that the tokens of the
        # first are computed, which is open with speculative decoding.
        tokens = list(request.all_token_ids)[: min(end + 1, self._stage.config.model_config.max_model_len - 2)]
        answers: list[int | None] = []
        self._calls.on_lookup.append(lambda _, __, returned: answers.append(returned))
        for number in range(1 + PATIENCE):
            self._add(f"again-{number}", tokens, request, max_tokens=2)
            run(())
            scheduler.reset_prefix_cache()
            if any(answers[1:]):
                return
        self._note(
            REST_RESET,
            "nothing is stored after a reset",
            f"{returned} tokens of {request.request_id} were found in the connector's store. After a reset of the connector,"
            f" with nothing else to do, the same {len(tokens)} tokens came {PATIENCE + 1} times, and were never found again.",
        )

    def _add(self, request_id: str, tokens: list[int], like: Any, *, max_tokens: int = 1) -> None:
        """Add a request with the salt and adapter of another one."""
        adapter = like.lora_request.lora_name if like.lora_request else ""
        self._stage.add(request_id, tokens, max_tokens, salt=like.cache_salt or "", adapter=adapter)

    def _note(self, kind: str, what: str, text: str) -> None:
        self.seen.setdefault((kind, what), Failure(kind, what, text))


def _identity(request: Any) -> str:
    adapter = None if request.lora_request is None else request.lora_request.lora_name
    parts = [f"{what} {value}" for what, value in (("salt", request.cache_salt), ("adapter", adapter)) if value]
    return f" (with {' and '.join(parts)})" if parts else ""


def _names(ids: list[str], ended: dict[str, str]) -> str:
    shown = [f"{each} ({ended[each]})" if each in ended else each for each in ids[:5]]
    return ", ".join(shown) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
