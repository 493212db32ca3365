"""The MooncakeConnector on two of vLLM's schedulers, both with the connector's own worker, its threads, its messages over
ZeroMQ and its bootstrap server. Only the `mooncake` package is another one: it moves the bytes within this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector")

from history import judge
from mooncake_stand_in import TransferEngines, installed
from processes import SLOW_S, free_port

from kvtrail.connector.simulate import in_memory
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.simulate.run import of_its_own
from kvtrail.connector.simulate.workers.contents import Shared
from kvtrail.tracer.events.events import Event, Free, Handoff, Notification, Xfer

PROMPT = list(range(3, 323))
BLOCKS = 10
"""Of the prompt."""
ROLES = {"p": "kv_producer", "d": "kv_consumer"}


class Pair:
    """An engine that prefills and one that decodes."""

    def __init__(self, folder: Path, stack: ExitStack, port: int) -> None:
        self.exporters = stack.enter_context(in_memory.exporters())
        self.engines, self.shared = TransferEngines(), Shared()
        stack.enter_context(installed(self.engines))
        self.address = f"http://127.0.0.1:{port}"
        self.p, self.d = (self._engine(folder, name) for name in ROLES)

    def _engine(self, folder: Path, name: str) -> BareScheduler:
        connector = of_its_own({"kv_connector": "MooncakeConnector", "kv_connector_module_path": "kvtrail.connector"})
        connector |= {"engine_id": name, "kv_role": ROLES[name], "kv_load_failure_policy": "recompute"}
        return BareScheduler(folder / "model", connector, own_workers=True, shared=self.shared)

    def prefill(self, transfer_id: str = "x-0") -> None:
        self.p.add("p-0", PROMPT, 1, transfer={"do_remote_decode": True, "transfer_id": transfer_id})

    def decode(self, transfer_id: str = "x-0", request: str = "d-0", engine: str = "p") -> None:
        parameters = {"remote_engine_id": engine, "remote_bootstrap_addr": self.address, "transfer_id": transfer_id}
        self.d.add(request, PROMPT, 4, transfer={"do_remote_prefill": True, **parameters})

    def until(self, done: Callable[[], Any]) -> None:
        """Step both until something is so: what they wait for is done by threads."""
        end = monotonic() + SLOW_S
        while not done():
            assert monotonic() < end, "it never is"
            self.p.step()
            self.d.step()

    def run(self) -> None:
        self.until(lambda: not (self.p.scheduler.requests or self.d.scheduler.requests))

    def events(self) -> list[list[Event]]:
        in_memory.flush()
        return [each.events() for each in self.exporters]

    def said(self) -> list[list[str]]:
        """What is recorded of messages and writes of each engine, in a few words each."""
        return [[_words(each) for each in side if isinstance(each, (Notification, Xfer))] for side in self.events()]

    def worker(self, name: str) -> Any:
        return getattr(self, name).worker.connectors[0].connector_worker

    def model(self, name: str) -> Any:
        return getattr(self, name).worker.model


def _words(event: Notification | Xfer) -> str:
    if isinstance(event, Notification):
        return f"{event.request} {event.notification} {event.direction} {event.peer_request} {event.blocks_count}"
    return f"{event.request} {event.xfer_op} {event.xfer_state} {event.peer_request} {event.blocks_count}"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    port = free_port()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, VLLM_MOONCAKE_BOOTSTRAP_PORT=str(port)))
        pair = Pair(tmp_path, stack, port)
        yield pair
        for name in ROLES:
            _end(pair.worker(name))
            getattr(pair, name).close()


def _end(worker: Any) -> None:
    """What the worker's own `shutdown` does, which in a test waits for ever for a socket that a task still holds."""

    async def cancelled() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    loop, thread = (
        (worker.receiver_loop, worker._mooncake_receiver_t)
        if worker.is_kv_consumer
        else (worker.sender_loop, worker._sender_listener_t)
    )
    asyncio.run_coroutine_threadsafe(cancelled(), loop).result(SLOW_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(SLOW_S)
    if not worker.is_kv_consumer:
        worker._sender_executor.shutdown()
        worker.bootstrap_server.shutdown()
    worker.async_zmq_ctx.destroy(linger=0)
    worker.shutdown = lambda: None


def found(*sides: Sequence[Event]) -> set[str]:
    detector = judge([event for side in sides for event in side])
    return {finding.rule for held in detector.findings.values() for finding in held.values()}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_hand_off_is_recorded_on_both_sides(pair: Pair, is_first: bool) -> None:
    """Whichever engine is asked first: what is said of a request that P does not have yet is recorded with it."""
    if is_first:
        pair.prefill()
        pair.until(lambda: pair.worker("p").reqs_need_send)
    pair.decode()
    if not is_first:
        pair.until(lambda: pair.worker("p").reqs_need_send)
        pair.prefill()
    pair.run()
    p, d = pair.events()
    assert pair.said() == [
        [
            "p-0 registration received d-0 10",
            "p-0 write posted d-0 10",
            "p-0 write done d-0 10",
            "p-0 done sent d-0 None",
        ],
        ["d-0 registration sent None 10", "d-0 done received None None"],
    ]
    keys = [each.handoff_keys for side in (p, d) for each in side if isinstance(each, Handoff)]
    assert keys == [("transfer_id:x-0",)] * 2
    writes = {each.notifications_expected for each in p if isinstance(each, Xfer)}
    assert writes == {1}, "one reader is to say that it has read"
    assert not [each for each in p if isinstance(each, Free)], "it was sent, and not given up"
    assert found(p, d) == set()


def test_a_request_that_needs_nothing_says_so(pair: Pair) -> None:
    """Aborted before it is scheduled: D names no blocks, and P gives the request's back without a write."""
    pair.prefill()
    pair.until(
        lambda: "x-0" in pair.worker("p").reqs_need_send and pair.worker("p").reqs_need_send["x-0"].ready.is_set()
    )
    pair.decode()
    pair.d.abort("d-0")
    pair.run()
    assert pair.said() == [
        ["p-0 done received d-0 0", "p-0 done sent d-0 None"],
        ["d-0 done sent None 0", "d-0 done received None None"],
    ]
    assert pair.engines.writes == 0


def test_a_write_that_fails_is_refused_and_the_prompt_is_computed(pair: Pair) -> None:
    pair.engines.failing = 1
    pair.prefill()
    pair.decode()
    pair.until(lambda: not pair.d.scheduler.requests)
    p, d = pair.said()
    assert p == [
        "p-0 registration received d-0 10",
        "p-0 write posted d-0 10",
        "p-0 write failed d-0 10",
        "p-0 refusal sent d-0 None",
    ]
    assert d == ["d-0 registration sent None 10", "d-0 refusal received None None"]
    failed = next(each for each in pair.events()[0] if isinstance(each, Xfer) and each.reason)
    assert failed.reason == "Mooncake transfer engine returned -1"


def test_what_is_not_asked_for_is_given_up_after_the_connectors_own_time(pair: Pair) -> None:
    pair.prefill()
    pair.until(
        lambda: "x-0" in pair.worker("p").reqs_need_send and pair.worker("p").reqs_need_send["x-0"].ready.is_set()
    )
    pair.worker("p").reqs_need_send["x-0"].expire_time = 0.0
    pair.run()
    assert [each.request for each in pair.events()[0] if isinstance(each, Free) and each.lease_expired] == ["p-0"]
    assert pair.said() == [[], []]


def test_an_engine_that_does_not_answer_is_recorded_with_the_reason(pair: Pair) -> None:
    pair.decode(engine="somebody-else")
    pair.run()
    (failed,) = [each for each in pair.events()[1] if isinstance(each, Notification)]
    assert (failed.notification, failed.direction, failed.peer) == ("failed", "received", "somebody-else")
    assert (failed.reason or "").startswith("remote engine_id somebody-else not found from bootstrap server")


def test_the_blocks_of_both_sides_are_named_at_level_detailed(pair: Pair) -> None:
    """Block k of one is written to block k of the other; so the bytes are the same afterwards."""
    pair.prefill()
    pair.decode()
    pair.run()
    done = next(each for each in pair.events()[0] if isinstance(each, Xfer) and each.xfer_state == "done")
    assert len(done.blocks_ids or ()) == len(done.peer_blocks_ids or ()) == BLOCKS
    assert pair.model("d").wrong == []
    caches = [next(iter(pair.model(name).caches.values())).tensor for name in ROLES]
    for ours, theirs in zip(done.blocks_ids or (), done.peer_blocks_ids or (), strict=True):
        assert caches[0][ours].equal(caches[1][theirs])
