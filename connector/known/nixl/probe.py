"""NIXL's messages between engines, as a worker takes them: which request was read, and of which the lease ran out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kvtrail.connector.known.probe import MAX_PENDING, Probe, ProbeEvent
from kvtrail.tracer.events.semconv import Kind

HEARTBEAT, REGISTRATION = b"HB:", b"PUSH_REG:"
"""How the messages begin that say nothing of a read."""


class NixlProbe(Probe):
    """On the worker of an engine that prefills. What is read is not announced: the engine that reads sends
    `REQUEST:READERS` once it has the blocks, and that message is all that this side ever sees of it."""

    report_calls = ("get_transfer_results", "get_finished")

    def __init__(self) -> None:
        self._seen: deque[ProbeEvent] = deque(maxlen=MAX_PENDING)

    def made(self, connector: Any) -> None:
        worker = getattr(connector, "connector_worker", None)
        if worker is None:
            return
        if hasattr(worker, "_read_blocks"):  # otherwise this side writes, and nobody reads
            _after(worker.nixl_wrapper, "get_new_notifs", self._note_messages)
        if hasattr(worker, "_reap_expired_send_leases"):
            self._note_expired(worker)
        if hasattr(worker, "_handle_heartbeat"):
            _after(worker, "_handle_heartbeat", partial(self._note_extended, worker))

    def reported(self, connector: Any, report: Any) -> Sequence[ProbeEvent]:
        seen = list(self._seen)
        self._seen.clear()
        return seen

    def _note_messages(self, taken: Mapping[Any, Iterable[bytes]], *arguments: Any) -> None:
        for messages in taken.values():
            for message in messages:
                if not message.startswith((HEARTBEAT, REGISTRATION)):
                    request_id, _, _ = message.decode().rpartition(":")
                    self._seen.append(ProbeEvent.of(Kind.READ, request_id))

    def _note_extended(self, worker: Any, _: Any, payload: str) -> None:
        """A heartbeat of an engine that is to read names the requests that it waits for."""
        lease_s = round(worker._lease_extension)
        kept = [each for each in payload.split(",") if each in worker._reqs_to_send]
        self._seen.extend(ProbeEvent.of(Kind.LEASE, each, lease_s=lease_s) for each in kept)

    def _note_expired(self, worker: Any) -> None:
        """What `_reap_expired_send_leases` adds to the requests that are done is given up without all of its readers."""
        reap = worker._reap_expired_send_leases

        def noted(done: set[str], *arguments: Any) -> Any:
            before = set(done)
            result = reap(done, *arguments)
            with suppress(Exception):
                expired = sorted(done - before)
                self._seen.extend(ProbeEvent.of(Kind.FREE, each, lease_expired=True) for each in expired)
            return result

        worker._reap_expired_send_leases = noted


def _after(owner: Any, call: str, note: Callable[..., None]) -> None:
    """Let `note` see what a method of an object returns, and its arguments. What `note` cannot read is left out."""
    plain = getattr(owner, call)

    def noted(*arguments: Any, **named: Any) -> Any:
        result = plain(*arguments, **named)
        with suppress(Exception):
            note(result, *arguments)
        return result

    setattr(owner, call, noted)


PROBE = NixlProbe
