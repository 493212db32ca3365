"""Observes the reads and writes of vLLM's NIXL worker: the methods that post them and detect their ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from kvtrail.connector.known.messages import blocks_of_both
from kvtrail.connector.known.watching import End, after, watch
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import Direction, Notice, XferOp, XferState
from kvtrail.tracer.events.semconv import Kind

MAX_OPEN = 4096
"""Maximum number of requests with observed transfers. Beyond it the oldest is forgotten, and its end is not recorded."""
FAILED = "ERR"
"""NIXL's state of a transfer that failed after it was posted."""
Blocks = Sequence[Sequence[int]]


class _Posted(NamedTuple):
    """A posted transfer that has not ended: the other engine, its rank, and its name for the request."""

    peer: str
    rank: int | None
    request: str


class Transfers:
    """Observes a worker's transfers: reads of a decode engine, or writes of a prefill engine."""

    def __init__(self, worker: Any, note: Callable[..., object], unsent: Callable[[], str | None]) -> None:
        """`note` records an observation, on any thread. `unsent` returns why this thread's last notification was not
        sent."""
        self._worker, self._note, self._unsent = worker, note, unsent
        self._open: BoundedDict[str, list[_Posted]] = BoundedDict(MAX_OPEN)
        self._failed: BoundedDict[str, bool] = BoundedDict(MAX_OPEN)
        """Requests that have a recorded failure and transfers that have not ended."""
        self._failure: str | None = None
        """The failure within the current post."""
        self._trimmed: tuple[Blocks, Blocks] | None = None
        """The blocks of the current post in the decode engine and in the other engine, without those that the decode engine
        already has."""
        self._posting: dict[str, Any] = {}
        """The arguments of the current post; empty between posts."""
        self._op = XferOp.READ if hasattr(worker, "_read_blocks") else XferOp.WRITE
        watch(worker, "_read_blocks" if self._op is XferOp.READ else "_xfer_blocks", self._begin_post)
        after(worker, "_apply_prefix_caching", self._note_trimmed)
        after(worker, "_handle_failed_transfer", self._note_failure)
        after(worker, "_pop_done_transfers", self._note_over)

    def _begin_post(self, *_: Any, **named: Any) -> End:
        self._posting, self._failure, self._trimmed = named, None, None
        return self._end_post

    def _note_trimmed(self, result: tuple[Blocks, Blocks], *_: Any, **named: Any) -> None:
        self._trimmed = result

    def _end_post(self, _: Any, error: Exception | None) -> None:
        try:
            local, remote = self._moved()
            if self._op is XferOp.READ:
                self._end_read(local, remote, error)
            elif len(local) or error is not None:  # otherwise there is nothing to write
                writers = max(1, self._worker.world_size // self._info().remote_tp_size)
                self._posted(local, remote, writers, error)
        finally:
            self._posting = {}

    def _end_read(self, local: Blocks, remote: Blocks, error: Exception | None) -> None:
        post, expected = self._posting, self._posting.get("expected_consumers")
        if not any(map(len, local)):  # nothing is needed: only a notification is sent
            self._note(
                Kind.NOTIFICATION, post["request_id"], notification=Notice.DONE.value, direction=Direction.SENT.value,
                blocks_count=0, peer=post["dst_engine_id"], peer_rank=self._rank(),
                peer_request=post["remote_request_id"], notifications_expected=expected, reason=self._unsent(),
            )  # fmt: skip
        else:
            self._posted(local, remote, expected, error)

    def _moved(self) -> tuple[Blocks, Blocks]:
        """The blocks of the current post in this engine and in the other one."""
        if self._trimmed is not None:
            return self._trimmed if self._op is XferOp.READ else self._trimmed[::-1]  # type: ignore[return-value]
        named = self._posting.get("read_spec")
        blocks = vars(named) if named is not None else self._posting
        return blocks["local_block_ids"], blocks["remote_block_ids"]

    def _posted(self, local: Blocks, remote: Blocks, expected: int | None, error: Exception | None) -> None:
        post, failure = self._posting, self._failure
        if error is not None:
            failure = f"{type(error).__name__}: {error}"
        one = _Posted(post["dst_engine_id"], self._rank(), post["remote_request_id"])
        request_id = post["request_id"]
        values = {"notifications_expected": expected, **self._blocks(local, remote)}
        if failure is None:
            self._open.setdefault(request_id, []).append(one)
        else:
            self._failed[request_id] = True
        self._seen(XferState.POSTED if failure is None else XferState.FAILED, request_id, one, failure, **values)

    def _note_failure(self, _: Any, request_id: str, handle: Any = None, *rest: Any, **named: Any) -> None:
        """Note a failed transfer: at its post, at a check of its state, or before. May be called while an exception is
        handled."""
        error = sys.exception()
        if self._posting.get("request_id") == request_id and error is not None:
            self._failure = f"{type(error).__name__}: {error}"  # the post is about to end
        elif error is not None or handle is not None:
            self._end(request_id, XferState.FAILED, f"{type(error).__name__}: {error}" if error else FAILED)
        elif self._op is XferOp.READ:  # the engine that is written to has no transfer itself
            self._end(request_id, XferState.FAILED, self._declined(request_id))

    def _declined(self, request_id: str) -> str:
        """The reason why a read was not posted."""
        remote = self._worker._recving_metadata[request_id].remote
        if remote.engine_id in getattr(self._worker, "_invalid_remote_engines", ()):
            return "the other engine is not connected any more"
        return "expired" if remote.engine_id in self._worker._remote_agents else "no handshake"

    def _note_over(self, result: Any, transfers: Any) -> None:
        over: Iterable[str] = result[0] if isinstance(result, tuple) else result
        if not over:
            return
        for request_id in sorted(over):
            self._end(request_id, XferState.DONE, None)
            self._failed.pop(request_id, None)

    def _end(self, request_id: str, state: XferState, reason: str | None) -> None:
        """Record that all transfers of a request have ended, or that one of them has failed; which one is unknown."""
        if state is XferState.FAILED:
            if request_id in self._failed:
                return  # reported at each check, until the handle is released
            self._failed[request_id] = True
        posted = self._open.pop(request_id, [])
        if not posted and state is XferState.FAILED:
            posted = [self._expected_from(request_id)]
        for one in posted:
            self._seen(state, request_id, one, reason)

    def _expected_from(self, request_id: str) -> _Posted:
        """The engine from which a request would have read if its transfer had been posted."""
        remote = getattr(self._worker._recving_metadata.get(request_id), "remote", None)
        return _Posted(remote.engine_id, None, remote.request_id) if remote else _Posted("", None, "")

    def _seen(self, state: XferState, request_id: str, one: _Posted, reason: str | None, **values: Any) -> None:
        values |= {"xfer_op": self._op.value, "xfer_state": state.value, "reason": reason}
        values |= {"peer": one.peer or None, "peer_rank": one.rank, "peer_request": one.request or None}
        self._note(Kind.XFER, request_id, **values)

    def _blocks(self, local: Blocks, remote: Blocks) -> dict[str, Any]:
        """The number of vLLM's blocks, and their ids unless NIXL's blocks are smaller."""
        ratio = getattr(self._worker, "_physical_blocks_per_logical_kv_block", 1)
        theirs = getattr(self._info(), "remote_physical_blocks_per_logical", ratio)
        number = sum(map(len, local))
        if ratio != 1 or theirs != 1:
            return {"blocks_count": -(-number // ratio)}
        return {"blocks_count": number, **blocks_of_both(local, remote)}

    def _info(self) -> Any:
        return self._worker.transfer_topo.get_engine_info(self._posting["dst_engine_id"])

    def _rank(self) -> int | None:
        spec = self._posting.get("read_spec")
        return getattr(spec, "remote_rank", None)
