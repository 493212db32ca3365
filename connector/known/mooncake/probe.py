"""Observes Mooncake's messages between workers, and the writes of the prefill engine.

The decode engine's worker names its blocks, or none if it needs nothing. The prefill engine's worker writes to them and
answers. All of this runs in the connector's own threads. Known: vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

from kvtrail.connector.known.messages import Messages, blocks_of_both
from kvtrail.connector.known.probe import Probe, ProbeEvent
from kvtrail.connector.known.watching import End, after, watch
from kvtrail.tracer.events.events import Direction, Notice, XferOp, XferState
from kvtrail.tracer.events.semconv import Kind

FAILED = "failed"
"""The notification that the decode engine's worker records if no answer comes."""
_ASKED: ContextVar[tuple[Any, dict[str, Callable[..., None]]]] = ContextVar("asked")
"""The message that a task of the sending worker answers, and for each request of the other engine a function that notes the
state of the write to it."""


class MooncakeProbe(Probe):
    report_calls = ("get_transfer_results", "get_finished")

    def __init__(self) -> None:
        self._messages = Messages()
        self._answering = False

    def made(self, connector: Any) -> None:
        worker = getattr(connector, "connector_worker", None)
        if worker is None:
            return
        failed = self._messages.failed
        if not worker.is_kv_consumer:
            watch(worker, "start_load_kv", self._name, failed)
            watch(worker, "send_kv_to_decode", self._on_asked, failed)
            after(worker, "_build_transfer_params", partial(self._on_write, worker), failed)
            watch(worker, "fetch_finished_sending_reqs", partial(self._on_sent, worker), failed)
            worker._encoder = _Encoder(worker._encoder)
            watch(worker._encoder, "encode", partial(self._on_answer, worker), failed)
        if not worker.is_kv_producer:
            watch(worker, "receive_kv_from_single_worker", self._on_request, failed)
            watch(worker, "process_pulling_result", self._on_answered, failed)
            watch(worker, "_handle_failed_recv", self._on_failed, failed)

    def reported(self, connector: Any, report: Any) -> Sequence[ProbeEvent]:
        return self._messages.take() if self._messages else ()

    # On the prefill engine's worker.

    def _name(self, metadata: Any) -> None:
        for request_id, (transfer_id, _) in metadata.reqs_to_send.items():
            self._messages.name(transfer_id, request_id)

    def _on_asked(self, identity: bytes, socket: Any, asked: Any) -> None:
        """Note that the decode engine's worker names blocks of some requests, or says that they need nothing."""
        _ASKED.set((asked, {}))
        for peer_request, (transfer_id, blocks) in asked.req_blocks.items():
            count = _count(blocks)
            said = Notice.REGISTRATION if count else Notice.DONE
            self._note(said, Direction.RECEIVED, transfer_id, peer_request, asked, blocks_count=count)

    def _on_write(self, worker: Any, built: Any, ready: Iterable[Any], asked: Any, *_: Any) -> None:
        """Note the writes that are about to begin. `built` has the requests that cannot be written."""
        failed, writes = set(built[3]), _ASKED.get()[1]
        for peer_request, sending in ready:
            theirs = asked.req_blocks[peer_request][1]
            if not (count := _count(theirs)):
                continue
            ours = [own[len(own) - len(other) :] for own, other in zip(sending.local_block_ids, theirs, strict=False)]
            values = {
                "peer": _peer(asked),
                "peer_rank": asked.remote_tp_rank,
                "peer_request": peer_request,
                "notifications_expected": sending.need_send or None,
                "blocks_count": count,
                **(blocks_of_both(ours, theirs) if peer_request not in failed else {}),
            }
            writes[peer_request] = partial(self._note_write, sending.transfer_id, values)
            if peer_request not in failed:
                writes[peer_request](XferState.POSTED)

    def _on_answer(self, worker: Any, answer: Any) -> None:
        """Note an answer before it is sent."""
        if not hasattr(answer, "status") or (context := _ASKED.get(None)) is None:
            return
        asked, writes = context
        refused = list(answer.err_reqs or ())
        if answer.status.name == "ERROR":
            refused = list(asked.req_blocks)
        for state, said, requests, reason in (
            (XferState.DONE, Notice.DONE, answer.ok_reqs or (), None),
            (XferState.FAILED, Notice.REFUSAL, refused, answer.err_msg),
        ):
            for peer_request in requests:
                transfer_id = asked.req_blocks[peer_request][0]
                if (note_write := writes.pop(peer_request, None)) is not None:
                    note_write(state, reason)
                self._note(said, Direction.SENT, transfer_id, peer_request, asked)
                if said is Notice.REFUSAL:
                    self._messages.give_up(transfer_id)

    def _on_sent(self, worker: Any) -> End:
        """Note requests that are reported as sent without having been sent: the connector's time limit has expired."""
        sent = set(worker.finished_sending_reqs)

        def fetched(finished: set[str] | None, error: Exception | None) -> None:
            for request_id in sorted((finished or set()) - sent):
                self._messages.note(Kind.FREE, request_id, lease_expired=True)

        return fetched

    def _note_write(
        self, transfer_id: str, values: Mapping[str, Any], state: XferState, reason: str | None = None
    ) -> None:
        to_record = {"xfer_op": XferOp.WRITE.value, "xfer_state": state.value, "reason": reason, **values}
        self._messages.note_of(transfer_id, Kind.XFER, **to_record)

    def _note(
        self, said: Notice, direction: Direction, transfer_id: str, peer_request: str, asked: Any, **values: Any
    ) -> None:
        values |= {"peer": _peer(asked), "peer_rank": asked.remote_tp_rank, "peer_request": peer_request}
        message = {"notification": said.value, "direction": direction.value}
        self._messages.note_of(transfer_id, Kind.NOTIFICATION, **message, **values)

    # On the decode engine's worker.

    def _on_request(self, address: str, pulls: Mapping[str, Any]) -> None:
        """Note that blocks are named to a worker of the prefill engine, or that nothing is needed."""
        for request_id, pull in pulls.items():
            count = _count(pull.local_block_ids)
            said = Notice.REGISTRATION if count else Notice.DONE
            values = {"notifications_expected": pull.pull_tasks_count or None, "blocks_count": count}
            self._note_here(said.value, Direction.SENT, request_id, pull, **values)

    def _on_answered(self, answer: Any, pulls: Mapping[str, Any]) -> End:
        for said, requests in ((Notice.DONE, answer.ok_reqs), (Notice.REFUSAL, answer.err_reqs)):
            for request_id in requests or ():
                self._note_here(said.value, Direction.RECEIVED, request_id, pulls.get(request_id))
        self._answering = True

        def ended(*_: Any) -> None:
            self._answering = False

        return ended

    def _on_failed(self, pulls: Mapping[str, Any], requests: Iterable[str], reason: str) -> None:
        """Note failed requests, unless an answer says so, which is recorded itself. Both calls are made in one thread."""
        if self._answering:
            return
        for request_id in requests:
            if (pull := pulls.get(request_id)) is not None and not pull.failed:
                self._note_here(FAILED, Direction.RECEIVED, request_id, pull, reason=reason)

    def _note_here(self, said: str, direction: Direction, request_id: str, pull: Any, **values: Any) -> None:
        values |= {"notification": said, "direction": direction.value, "peer": getattr(pull, "remote_engine_id", None)}
        self._messages.note(Kind.NOTIFICATION, request_id, **values)


class _Encoder:
    """The worker's encoder, which gets each answer before it is sent, with a method that can be replaced."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def encode(self, message: Any) -> Any:
        return self._plain.encode(message)


def _peer(asked: Any) -> str:
    return f"{asked.remote_hostname}:{asked.remote_port}"


def _count(blocks: Sequence[Sequence[int]]) -> int:
    return sum(map(len, blocks))


PROBE = MooncakeProbe
