"""What the probe of vLLM's NIXL connectors sees is what the network did, on both engines; one of them reads or writes."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")
pytest.importorskip("vllm.distributed.nixl_utils", reason="vLLM 0.32 and later")

from faulty_pairs import DECODE, PREFILL, PlayedPair, Request, paired, play_pair

from kvtrail.connector.known.nixl.probe import NixlProbe
from kvtrail.connector.known.nixl.stand_in.network import Fails, Schedule
from kvtrail.connector.registration import configuration
from kvtrail.tracer.events.events import Alloc, Notification, Read, Xfer, XferState
from kvtrail.tracer.events.semconv import Kind

PULL, PUSH = "NixlPullConnector", "NixlPushConnector"
SHARED = ("shared", 70)
REQUESTS = tuple(
    Request(f"r-{number}", (SHARED, (f"own {number}", 40 + 30 * number)), at_tick=8 * number) for number in range(8)
)


def played(name: str, level: str = "detailed", *requests: Request, **schedule: float) -> PlayedPair:
    scenario = paired(requests=requests or REQUESTS, network=Schedule(**{"seed": 3, **schedule}))  # type: ignore[arg-type]
    return play_pair(scenario, configuration(name, {"kvtrail": {"level": level}}))


def xfers(pair: PlayedPair, engine: str) -> list[Xfer]:
    return [event for event in pair.recorded[engine] if isinstance(event, Xfer)]


def notifications(pair: PlayedPair, engine: str) -> list[Notification]:
    return [event for event in pair.recorded[engine] if isinstance(event, Notification)]


@pytest.mark.parametrize(("name", "mover", "op"), [(PULL, DECODE, "read"), (PUSH, PREFILL, "write")])
def test_each_transfer_is_posted_and_ends_and_names_the_blocks_of_both_engines(name: str, mover: str, op: str) -> None:
    pair = played(name)
    assert (dict(pair.wrong), dict(pair.errors), pair.findings) == ({}, {}, [])
    seen = xfers(pair, mover)
    assert not xfers(pair, PREFILL if mover == DECODE else DECODE)
    states = Counter((event.request, event.xfer_state) for event in seen)
    requests = {event.request for event in seen}
    assert len(requests) == len(REQUESTS)
    assert states == Counter((request, state) for request in requests for state in ("posted", "done"))
    allocated = {
        event.request: event for event in pair.recorded[DECODE] if isinstance(event, Alloc) and event.allocated
    }
    for event in seen:
        other = pair.names[event.peer_request or ""]
        assert (pair.names[event.request or ""], event.xfer_op, event.peer_rank) == (other, op, 0)
        assert (event.peer or "").startswith(PREFILL if mover == DECODE else DECODE)
        if event.xfer_state == XferState.POSTED:
            here, there = event.blocks_ids or (), event.peer_blocks_ids or ()
            assert (event.notifications_expected, event.blocks_count, len(there)) == (1, len(here), len(here))
            decoding = event.request if mover == DECODE else event.peer_request
            table = allocated[decoding].blocks_ids or ()
            assert (here if mover == DECODE else there) == table[-len(here) :]


@pytest.mark.parametrize(("name", "mover"), [(PULL, DECODE), (PUSH, PREFILL)])
def test_block_ids_need_the_level_detailed(name: str, mover: str) -> None:
    posted = [event for event in xfers(played(name, "basic"), mover) if event.xfer_state == XferState.POSTED]
    assert posted
    assert all(event.blocks_count and event.blocks_ids is event.peer_blocks_ids is None for event in posted)


def test_a_read_that_fails_says_where() -> None:
    for seed in range(6):
        pair = played(PULL, failing=0.5, seed=seed)
        failed = [event for event in xfers(pair, DECODE) if event.xfer_state == XferState.FAILED]
        reasons = Counter(event.reason for event in failed)
        at_post = sum(where is Fails.POST for _, where in pair.network.failed)
        assert reasons["RuntimeError: NIXL_ERR_BACKEND"] == at_post, seed
        assert reasons["ERR"] == len(pair.network.failed) - at_post, seed
        assert len(failed) == len(pair.network.failed), seed
        ends = Counter(event.request for event in xfers(pair, DECODE) if event.xfer_state != XferState.POSTED)
        assert set(ends.values()) == {1}, seed


def test_a_reader_is_named_with_the_number_of_reports_that_it_expects() -> None:
    pair = played(PULL)
    reads = [event for event in pair.recorded[PREFILL] if isinstance(event, Read)]
    assert len(reads) == len(REQUESTS)
    (agent,) = {event.peer for event in reads}
    assert agent in pair.network.agents
    assert {event.notifications_expected for event in reads} == {1}


def test_who_needs_nothing_says_so_and_that_is_recorded_where_it_is_sent() -> None:
    again = Request("again", REQUESTS[1].prompt, at_tick=60, kept_ticks=1)
    pair = played(PULL, "basic", REQUESTS[1], again)
    needless = [event for event in notifications(pair, DECODE) if event.notification == "done"]
    reads = [event for event in xfers(pair, DECODE) if event.xfer_state == XferState.POSTED]
    assert len(reads) + len(needless) == 2
    assert all((each.direction, each.reason, each.blocks_count) == ("sent", None, 0) for each in needless)


def test_who_is_written_to_registers_and_hears_of_the_end() -> None:
    pair = played(PUSH)
    for what, engine, direction in (
        ("registration", DECODE, "sent"), ("registration", PREFILL, "received"), ("done", DECODE, "received")
    ):  # fmt: skip
        found = [event for event in notifications(pair, engine) if event.notification == what]
        assert len(found) == len(REQUESTS), what
        assert {event.direction for event in found} == {direction}
    registered = {event.peer_request for event in notifications(pair, PREFILL)}
    assert registered == {event.request for event in notifications(pair, DECODE)}


def test_a_handshake_that_fails_is_recorded_with_its_reason() -> None:
    kept = Request("r-0", REQUESTS[0].prompt, kept_ticks=10)
    pair = play_pair(paired(requests=(kept,), prefill_dies_at=8), configuration(PULL, {}))
    (handshake,) = [event for event in notifications(pair, DECODE) if event.notification == "handshake"]
    assert handshake.reason is not None
    assert handshake.reason.startswith("Again:"), "there is no answer"
    (failed,) = xfers(pair, DECODE)
    assert (failed.xfer_state, failed.reason) == ("failed", "no handshake")


@pytest.mark.parametrize(
    ("ranks", "counts_readers", "message", "expected"),
    [(1, True, b"r:2", 2), (2, True, b"r:2", 2), (2, False, b"r:4", 2), (2, False, b"r:2", 1), (4, False, b"r:2", 1)],
)
def test_how_many_readers_an_older_vllm_means(ranks: int, counts_readers: bool, message: bytes, expected: int) -> None:
    """Before vLLM 0.32 a report says how many ranks the other engine has, not how many of them read from one."""

    class Wrapper:
        def get_new_notifs(self) -> dict[str, list[bytes]]:
            return {"reader": [message]}

    class Worker:
        world_size, nixl_wrapper = ranks, Wrapper()

        def _read_blocks(self) -> None: ...

    worker = Worker()
    if counts_readers:
        vars(worker)["expected_consumer_notifications_by_req"] = {}
    probe = NixlProbe()
    probe.made(SimpleNamespace(connector_worker=worker))
    worker.nixl_wrapper.get_new_notifs()
    ((kind, request, values),) = probe.reported(None, None)
    assert (kind, request) == (Kind.READ, "r")
    assert "reader" in values
    assert expected in values


class WorkerBefore031:
    """As vLLM's before 0.31: it adds requests with an expired lease to the set of those that all readers have reported."""

    def __init__(self) -> None:
        self.nixl_wrapper = SimpleNamespace()
        self.reported, self.expired = {"read by all"}, {"never read"}

    def _get_new_notifs(self) -> set[str]:
        return {*self.reported}

    def get_finished(self) -> tuple[set[str], set[str]]:
        done = self._get_new_notifs()
        done |= self.expired
        return done, set()
