"""Observes NIXL's workers: reads and writes, notifications between engines, and expired leases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import local
from typing import Any

from kvtrail.connector.known.messages import Messages
from kvtrail.connector.known.nixl.transfers import Transfers
from kvtrail.connector.known.probe import Probe, ProbeEvent
from kvtrail.connector.known.watching import End, after, watch
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import Direction, Notice
from kvtrail.tracer.events.semconv import Kind

HEARTBEAT, REGISTRATION = b"HB:", b"PUSH_REG:"
"""Prefixes of messages that are not about a transfer. Other messages have the form `REQUEST:EXPECTED`."""
MAX_ENGINES = 256
"""Maximum number of other engines with an observed handshake."""


class NixlProbe(Probe):
    """The worker's side. When a decode engine reads blocks, the prefill engine only gets a notification after the read. When
    the prefill engine writes, the decode engine has registered its blocks before, and gets the notification."""

    report_calls = ("start_load_kv", "get_transfer_results", "get_finished")

    def __init__(self) -> None:
        self._messages = Messages()
        self._handshakes: BoundedDict[str, Any] = BoundedDict(MAX_ENGINES)
        """The last pending handshake with each engine."""
        self._sending = local()
        """`reason`: why this thread's last notification was not sent."""

    def made(self, connector: Any) -> None:
        worker = getattr(connector, "connector_worker", None)
        if worker is None:
            return
        reads = hasattr(worker, "_read_blocks")
        after(worker.nixl_wrapper, "get_new_notifs", partial(self._note_messages, worker, reads))
        watch(worker.nixl_wrapper, "send_notif", lambda *_, **__: self._note_sent)
        Transfers(worker, self._messages.note, self._unsent)
        watch(worker, "_reap_expired_send_leases", partial(self._note_expired, worker))
        after(worker, "_handle_heartbeat", partial(self._note_extended, worker))
        after(worker, "_do_send_reg_notif", partial(self._note_registration, worker))
        after(worker, "_ensure_handshake", self._note_handshake)

    def reported(self, connector: Any, report: Any) -> Sequence[ProbeEvent]:
        return self._messages.take()

    def _note_messages(self, worker: Any, reads: bool, taken: Mapping[Any, Iterable[bytes]]) -> None:
        for peer, messages in taken.items():
            for message in messages:
                if message.startswith(REGISTRATION):
                    self._note_registered(message)
                elif not message.startswith(HEARTBEAT):
                    self._note_done(worker, reads, str(peer), message)

    def _note_done(self, worker: Any, reads: bool, peer: str, message: bytes) -> None:
        """Note that a reader or a writer is done."""
        request_id, _, number = message.decode(errors="replace").rpartition(":")
        expected = int(number) if number.isascii() and number.isdecimal() else None
        if not request_id or expected is None:
            self._notice(None, Notice.UNKNOWN, Direction.RECEIVED, peer=peer)
        elif reads:
            if not hasattr(worker, "expected_consumer_notifications_by_req"):
                expected = max(1, expected // worker.world_size)  # before vLLM 0.32 the number is for all ranks
            self._messages.note(Kind.READ, request_id, peer=peer, notifications_expected=expected)
        else:  # the number is for all ranks of the writer; a share of them writes to this rank
            meta = worker._recving_metadata.get(request_id)
            writers = max(1, expected // worker.world_size) * getattr(meta, "pp_size", 1)
            self._notice(
                request_id, Notice.DONE, Direction.RECEIVED, peer=peer, notifications_expected=writers,
                peer_request=None if meta is None or meta.remote is None else meta.remote.request_id,
            )  # fmt: skip

    def _note_registered(self, message: bytes) -> None:
        """Note the registration of another engine's blocks. Its request is unknown until the engine has matched the two
        ids."""
        from msgspec import msgpack

        said = msgpack.decode(message[len(REGISTRATION) :])
        self._notice(
            None, Notice.REGISTRATION, Direction.RECEIVED, peer=said["decode_engine_id"],
            peer_request=said["request_id"], blocks_count=_number_of(said["local_block_ids"]),
        )  # fmt: skip

    def _note_registration(self, worker: Any, _: Any, request_id: str, said: Mapping[str, Any]) -> None:
        engine, reason = said["remote_engine_id"], self._unsent()
        if not worker._remote_agents.get(engine):
            reason = "no remote agents"
        self._notice(
            request_id, Notice.REGISTRATION, Direction.SENT, peer=engine, reason=reason,
            blocks_count=_number_of(said["local_block_ids"]),
        )  # fmt: skip

    def _note_sent(self, _: Any, error: Exception | None) -> None:
        self._sending.reason = None if error is None else f"{type(error).__name__}: {error}"

    def _unsent(self) -> str | None:
        return getattr(self._sending, "reason", None)

    def _note_handshake(self, pending: Any, engine: str, *_: Any, **named: Any) -> None:
        if pending is None or self._handshakes.get(engine) is pending:
            return
        self._handshakes[engine] = pending

        def over(handshake: Any) -> None:
            with suppress(Exception):
                if (error := handshake.exception()) is not None:
                    reason = f"{type(error).__name__}: {error}"
                    self._notice(None, Notice.HANDSHAKE, Direction.SENT, peer=engine, reason=reason)

        pending.add_done_callback(over)

    def _note_extended(self, worker: Any, _: Any, payload: str) -> None:
        """Note extended leases: the heartbeat of a decode engine names the requests for which it waits."""
        lease_s = round(worker._lease_extension)
        for each in payload.split(","):
            if each in worker._reqs_to_send:
                self._messages.note(Kind.LEASE, each, lease_s=lease_s)

    def _note_expired(self, worker: Any, done: set[str], *_: Any) -> End | None:
        """Note the requests that `_reap_expired_send_leases` adds to `done`: not all of their readers were done."""
        if not worker._reqs_to_send:  # no blocks are kept, as in most steps of a decode engine
            return None
        before = set(done)

        def reaped(*_: Any) -> None:
            for each in sorted(done - before):
                self._messages.note(Kind.FREE, each, lease_expired=True)

        return reaped

    def _notice(self, request_id: str | None, what: Notice, direction: Direction, **values: Any) -> None:
        values |= {"notification": what.value, "direction": direction.value}
        self._messages.note(Kind.NOTIFICATION, request_id, **values)


def _number_of(blocks: Any) -> int:
    """The number of blocks in all KV cache groups. Some registrations have a single list, without groups."""
    return sum(len(group) if isinstance(group, list | tuple) else 1 for group in blocks)


PROBE = NixlProbe
