"""The P2P tier of the OffloadingConnector: its messages, and its writes to the host memory of other engines.

It runs on the scheduler's side. Both engines call a hand-off by the `kv_request_id` that the router gives them. Its blocks
are chunks in host memory: they are counted as vLLM's blocks, and have none of their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kvtrail.connector.known.messages import Messages, notification, transfer
from kvtrail.connector.known.watching import End
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import Direction, Notice, XferOp, XferState
from kvtrail.tracer.events.semconv import Kind

TIER = "P2PSecondaryTierManager"
NAMED_IN = ("remote_prefiller", "remote_kv_source", "remote_decoder")
"""Parameters with a `kv_request_id`."""
MEANS = {"fetch": Notice.REGISTRATION, "transfer_done": Notice.DONE, "abort_fetch": Notice.ABORT}
"""What the tier's messages say; the others have no word of their own."""
CLOSED = "finished"
"""What a fetch of nothing says: no more will be looked up or fetched for the request."""
MAX_WRITES = 65_536
"""Writes that have not ended."""


class Peers:
    """Follows the tier of one connector."""

    def __init__(self, tier: Any, blocks_per_chunk: int, messages: Messages) -> None:
        self._tier, self._per_chunk, self._messages = tier, blocks_per_chunk, messages
        self._serving: str | None = None
        """The hand-off that a write is submitted for."""
        self._writes: BoundedDict[int, tuple[str, str, int]] = BoundedDict(MAX_WRITES)
        """By the number of a write that has not ended: the hand-off, the peer, and how many blocks."""
        messages.around(tier, "on_new_request", self._name)
        messages.around(tier, "_reap_unbound_stores", self._on_reap)
        messages.after(tier, "_get_or_create_session", self._follow_sessions)
        messages.after(tier, "_accept_new_peers", self._follow_sessions)
        messages.after(tier._control, "connect", lambda connection, *_: self._follow_connection(connection))
        messages.after(tier._control, "poll", self._follow_connections)
        messages.around(tier._data, "write_blocks", self._on_write)
        messages.after(tier._data, "poll", self._on_ended)
        messages.after(tier._data, "cancel", self._on_cancelled)

    def _name(self, context: Any) -> None:
        parameters = context.kv_transfer_params
        for role in NAMED_IN if isinstance(parameters, Mapping) else ():
            own = parameters.get(role)
            if isinstance(own, Mapping) and own.get("kv_request_id"):
                self._messages.name(own["kv_request_id"], context.req_id)

    def _follow_connections(self, new: Iterable[Any]) -> None:
        for connection in new:
            self._follow_connection(connection)

    def _follow_connection(self, connection: Any) -> None:
        def sent(message: Mapping[str, Any]) -> End:
            return lambda _, error: self._on_message(connection.peer_id, Direction.SENT, message, error)

        def received(messages: Sequence[Mapping[str, Any]]) -> None:
            for message in messages:
                self._on_message(connection.peer_id, Direction.RECEIVED, message)

        self._messages.around(connection, "send", sent)
        self._messages.after(connection, "recv", received)

    def _on_message(
        self, peer: str, direction: Direction, message: Mapping[str, Any], error: Exception | None = None
    ) -> None:
        """Messages of another form are the tier's to refuse."""
        kind, key = message.get("type"), message.get("kv_request_id")
        if not isinstance(kind, str):
            return
        chunks = message.get("keys")
        said: str = MEANS.get(kind, kind)
        if kind == "fetch" and not chunks:
            said = CLOSED
        elif kind == "transfer_done" and not message.get("success"):
            said = Notice.REFUSAL
        count = len(chunks) * self._per_chunk if isinstance(chunks, list) else None
        values = notification(str(said), direction, peer=peer, blocks_count=count, reason=error and str(error))
        if isinstance(key, str):
            self._messages.note_of(key, Kind.NOTIFICATION, **values)
        else:
            self._messages.note(Kind.NOTIFICATION, None, **values)

    def _follow_sessions(self, *_: Any) -> None:
        for session in self._tier._sessions.values():
            if "_submit_transfer" not in vars(session._server):  # the class's own, still
                self._messages.around(session._server, "_submit_transfer", self._on_submit)

    def _on_submit(self, key: str, *_: Any) -> None:
        self._serving = key

    def _on_write(
        self, peer: str, local: Sequence[int], remote: Sequence[int]
    ) -> Callable[[int | None, Exception | None], None]:
        key, self._serving = self._serving, None
        if key is None:
            raise RuntimeError("a write for an unknown hand-off")
        write = key, peer, len(local)

        def submitted(number: int | None, error: Exception | None) -> None:
            if number is None:
                self._note_write(XferState.FAILED, write, str(error or "it could not be submitted"))
                return
            self._writes[number] = write
            self._note_write(XferState.POSTED, write)

        return submitted

    def _on_ended(self, result: Any, *_: Any, **__: Any) -> None:
        for number in result.done:
            if (write := self._writes.pop(number, None)) is not None:
                self._note_write(XferState.DONE, write)
        for number in result.failed:
            if (write := self._writes.pop(number, None)) is not None:
                self._note_write(XferState.FAILED, write, "the transfer failed")

    def _on_cancelled(self, left: Iterable[int], numbers: Iterable[int], *_: Any, **__: Any) -> None:
        for number in set(numbers) - set(left):
            if (write := self._writes.pop(number, None)) is not None:
                self._note_write(XferState.FAILED, write, "it was cancelled")

    def _on_reap(self) -> End | None:
        """What nobody has fetched in time is given up."""
        parked = dict(self._tier._unbound_stores)
        return (lambda *_: self._note_unfetched(parked)) if parked else None

    def _note_unfetched(self, parked: Mapping[str, Sequence[Any]]) -> None:
        reason = f"no engine has fetched them within {self._tier._unbound_store_timeout_s:g} s"
        for key in parked.keys() - self._tier._unbound_stores.keys():
            count = sum(len(batch.block_ids) for batch in parked[key])
            self._messages.note_of(key, Kind.XFER, **self._write(XferState.FAILED, None, count, reason))

    def _note_write(self, state: XferState, write: tuple[str, str, int], reason: str | None = None) -> None:
        key, peer, count = write
        self._messages.note_of(key, Kind.XFER, **self._write(state, peer, count, reason))

    def _write(self, state: XferState, peer: str | None, chunks: int, reason: str | None) -> dict[str, Any]:
        return transfer(XferOp.WRITE, state, peer=peer, blocks_count=chunks * self._per_chunk, reason=reason)


def follow(connector: Any, messages: Messages) -> Peers | None:
    """Follow the P2P tier of a connector from its scheduler's side on, if it has one."""
    scheduler: Any = getattr(connector, "connector_scheduler", None)
    for tier in getattr(getattr(scheduler, "manager", None), "secondary_tiers", ()):
        if any(base.__name__ == TIER for base in type(tier).__mro__):
            return Peers(tier, int(getattr(scheduler.config, "blocks_per_chunk", 1)), messages)
    return None
