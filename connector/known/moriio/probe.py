"""MoRIIO's messages and transfers: reads of the engine that decodes, or writes of the one that prefills, by its mode.

Both engines call a hand-off by its `transfer_id`. Messages come in threads of the connector's own. With writes, the
scheduler's side of the engine that decodes names its blocks. Known: vLLM 0.32.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from kvtrail.connector.known.messages import Messages, blocks_of_both, notification, transfer
from kvtrail.connector.known.probe import Probe, ProbeEvent
from kvtrail.connector.known.watching import End
from kvtrail.tracer.events.bounded import BoundedDict
from kvtrail.tracer.events.events import Direction, Notice, XferOp, XferState
from kvtrail.tracer.events.semconv import Kind

MAX_WRITES = 65_536
"""Writes that have not ended."""


class MoriioProbe(Probe):
    report_calls = ("get_transfer_results", "get_finished")
    sees_reports = True

    def __init__(self) -> None:
        self._messages = Messages()
        self._writes: BoundedDict[str, dict[str, Any]] = BoundedDict(MAX_WRITES)
        """By the hand-off, what is recorded of a write that has been posted and has not ended."""
        self._failed: set[str] = set()
        """Of the reads that are looked at, those that have failed."""

    def made(self, connector: Any) -> None:
        follow = self._messages
        if (scheduler := getattr(connector, "connector_scheduler", None)) is not None:
            follow.around(scheduler, "send_notify_block", self._on_blocks_named)
            follow.around(scheduler, "_release_write_prefill_blocks", self._name_released)
            follow.around(scheduler, "_send_transfer_release", self._on_nothing_needed)
            follow.around(scheduler, "update_connector_output", partial(self._on_reap, scheduler))
        if (worker := getattr(connector, "connector_worker", None)) is None:
            return
        wrapper, writer = worker.moriio_wrapper, worker._writer
        follow.around(wrapper, "_handle_message", self._on_message)
        follow.after(wrapper, "_handle_remote_blocks_message", partial(self._on_remote_blocks, worker))
        follow.after(wrapper, "_handle_release_message", partial(self._on_release, worker))
        follow.after(wrapper, "_handle_write_done_message", partial(self._on_write_done, worker))
        follow.after(wrapper, "_handle_completion_message", partial(self._on_completion, worker))
        follow.around(wrapper, "send_notify", partial(self._on_notify, worker))
        follow.after(writer, "_prepare_transfer_plan", partial(self._on_write, worker))
        follow.around(writer, "_mark_request_done", partial(self._on_write_failed, worker, writer))
        follow.around(worker, "_read_blocks", partial(self._on_read, worker))
        follow.around(worker, "_record_failed_recv", self._failed.add)
        follow.around(worker, "_pop_done_transfers", partial(self._on_reads_looked_at, worker))

    def reported(self, connector: Any, report: Any) -> Sequence[ProbeEvent]:
        worker = getattr(connector, "connector_worker", None)
        if worker is not None:
            self._messages.name_waiting(worker.transfer_id_to_request_id)
        return self._messages.take() if self._messages else ()

    # On the scheduler's side.

    def _on_blocks_named(
        self, req_id: str, transfer_id: str, block_notify_list: Sequence[int], host: Any = None, port: Any = None
    ) -> End:
        values = {"peer": _peer(host, port), "blocks_count": len(block_notify_list or ())}
        return self._sent(req_id, Notice.REGISTRATION, values)

    def _name_released(self, request_id: str, parameters: Mapping[str, Any]) -> None:
        self._messages.name(parameters["transfer_id"], request_id)

    def _on_nothing_needed(self, transfer_id: str, host: Any, port: Any) -> End:
        return self._sent_of(transfer_id, Notice.DONE, {"peer": _peer(host, port)})

    def _on_reap(self, scheduler: Any, output: Any) -> End | None:
        """What is freed without the workers' word, now or before, has waited for longer than `defer_timeout`."""
        if not scheduler._deferred_send_deadlines:
            return None
        waiting = set(scheduler._deferred_send_deadlines)
        sent = (output.finished_sending or set()) | scheduler._pending_sent_acks.keys()

        def reaped(_: Any, error: Exception | None) -> None:
            for request_id in sorted(waiting - scheduler._deferred_send_deadlines.keys() - sent):
                self._messages.note(Kind.FREE, request_id, lease_expired=True)

        return reaped

    # On a worker, as messages arrive.

    def _on_message(self, message: bytes) -> End:
        def handled(_: Any, error: Exception | None) -> None:
            if error is not None:
                self._messages.note(Kind.NOTIFICATION, None, **notification(Notice.UNKNOWN, Direction.RECEIVED))

        return handled

    def _on_remote_blocks(self, worker: Any, _: Any, data: Mapping[str, Any]) -> None:
        count = len(data.get("block_notify_list") or ())
        values = {"peer_rank": data.get("decode_rank"), "peer_request": data.get("req_id"), "blocks_count": count}
        self._received(worker, data["transfer_id"], Notice.REGISTRATION, **values)

    def _on_release(self, worker: Any, _: Any, data: Mapping[str, Any]) -> None:
        """A reader reports; or the other engine needs nothing of what was to be written."""
        readers = max(1, int(data.get("consumer_tp_size", 1)) // worker.world_size)
        self._note_of(worker, data["transfer_id"], Kind.READ, notifications_expected=readers)

    def _on_write_done(self, worker: Any, _: Any, data: Mapping[str, Any]) -> None:
        self._received(worker, data["transfer_id"], Notice.DONE)

    def _on_completion(self, worker: Any, _: Any, transfer_id: str) -> None:
        """The form of a message that an older vLLM sends."""
        if worker.is_producer:
            self._note_of(worker, transfer_id, Kind.READ)
        else:
            self._received(worker, transfer_id, Notice.DONE)

    def _on_notify(
        self,
        worker: Any,
        transfer_ids: str | list[str],
        host: Any,
        port: Any,
        message_type: str | None = None,
        message_fields: Any = None,
    ) -> End:
        def sent(_: Any, error: Exception | None) -> None:
            for transfer_id in transfer_ids if isinstance(transfer_ids, list) else [transfer_ids]:
                if (write := self._writes.pop(transfer_id, None)) is not None:
                    self._note_of(worker, transfer_id, Kind.XFER, **transfer(XferOp.WRITE, XferState.DONE, **write))
                self._sent_of(transfer_id, Notice.DONE, {"peer": _peer(host, port)}, worker)(None, error)

        return sent

    # On a worker that writes.

    def _on_write(self, worker: Any, plan: Any, task: Any, allocated: Any, *_: Any, **__: Any) -> None:
        """The first of a hand-off's layers."""
        if task.transfer_id not in self._writes:
            self._writes[task.transfer_id] = write = {
                "peer": str(task.dst_engine_id),
                "peer_rank": allocated.decode_dp_rank,
                "blocks_count": len(allocated.block_ids),
            }
            self._messages.name(task.transfer_id, task.request_id)
            self._messages.note_of(task.transfer_id, Kind.XFER, **transfer(XferOp.WRITE, XferState.POSTED, **write))

    def _on_write_failed(self, worker: Any, writer: Any, transfer_id: str) -> None:
        """Called while its exception is handled; without one, the other engine has never named its blocks."""
        error, write = sys.exception(), self._writes.pop(transfer_id, {})
        reason = str(error) or repr(error) if error else f"no blocks were named within {writer._defer_timeout:g} s"
        self._note_of(
            worker, transfer_id, Kind.XFER, **transfer(XferOp.WRITE, XferState.FAILED, **write, reason=reason)
        )

    # On a worker that reads.

    def _on_read(self, worker: Any, **asked: Any) -> End | None:
        """The reads of all layers of a request; if it needs none, that is said only."""
        request_id, ours, theirs = asked["request_id"], asked["local_block_ids"], asked["remote_block_ids"]
        self._messages.name(asked["transfer_id"], request_id)
        if not any(ours):
            return None
        values = {
            "peer": str(asked["dst_engine_id"]),
            "peer_rank": asked.get("chosen_tp"),
            "notifications_expected": max(1, worker.world_size // (int(asked["remote_tp_size"]) or worker.world_size)),
            "blocks_count": sum(map(len, ours)),
            **blocks_of_both(ours, theirs),
        }

        def posted(_: Any, error: Exception | None) -> None:
            state = XferState.POSTED if error is None else XferState.FAILED
            reason = None if error is None else str(error) or repr(error)
            self._messages.note(Kind.XFER, request_id, **transfer(XferOp.READ, state, **values, reason=reason))

        return posted

    def _on_reads_looked_at(self, worker: Any) -> End | None:
        """Those that are not awaited any more have ended."""
        before = {request_id: list(_statuses(layers)) for request_id, layers in worker._recving_transfers.items()}
        if not before:
            return None
        self._failed.clear()

        def looked_at(_: Any, error: Exception | None) -> None:
            for request_id in before.keys() - worker._recving_transfers.keys():
                state, reason = XferState.DONE, None
                if request_id in self._failed:
                    state, reason = XferState.FAILED, _why(before[request_id], worker.moriio_config.recv_abort_timeout)
                self._messages.note(Kind.XFER, request_id, **transfer(XferOp.READ, state, reason=reason))

        return looked_at

    # Notes.

    def _note_of(self, worker: Any, transfer_id: str, kind: Kind, **values: Any) -> None:
        if (request_id := worker.transfer_id_to_request_id.get(transfer_id)) is not None:
            self._messages.name(transfer_id, request_id)
        self._messages.note_of(transfer_id, kind, **values)

    def _received(self, worker: Any, transfer_id: str, said: Notice, **values: Any) -> None:
        self._note_of(worker, transfer_id, Kind.NOTIFICATION, **notification(said, Direction.RECEIVED, **values))

    def _sent(self, request_id: str, said: Notice, values: Mapping[str, Any]) -> End:
        def sent(_: Any, error: Exception | None) -> None:
            reason = None if error is None else str(error)
            words = notification(said, Direction.SENT, **values, reason=reason)
            self._messages.note(Kind.NOTIFICATION, request_id, **words)

        return sent

    def _sent_of(self, transfer_id: str, said: Notice, values: Mapping[str, Any], worker: Any = None) -> End:
        def sent(_: Any, error: Exception | None) -> None:
            reason = None if error is None else str(error)
            words = notification(said, Direction.SENT, **values, reason=reason)
            if worker is None:
                self._messages.note_of(transfer_id, Kind.NOTIFICATION, **words)
            else:
                self._note_of(worker, transfer_id, Kind.NOTIFICATION, **words)

        return sent


def _peer(host: Any, port: Any) -> str:
    return f"{host}:{port}"


def _statuses(layers: Mapping[str, Iterable[Any]]) -> Iterable[Any]:
    return (status for statuses in layers.values() for status in statuses)


def _why(statuses: Iterable[Any], limit_s: float) -> str:
    """Why a read has failed: as one of its transfers says, or since it was given up."""
    failed = next((status for status in statuses if status.Failed()), None)
    return f"not done within {limit_s:g} s" if failed is None else str(failed.Message())


PROBE = MoriioProbe
