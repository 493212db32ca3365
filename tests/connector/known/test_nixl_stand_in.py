"""The network that stands in for the `nixl` package: real bytes move when its schedule says so, and as NIXL would."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("zmq", reason="vLLM's handshake needs ZeroMQ")

from kvtrail.connector.known.nixl.stand_in.network import OWN, Agent, Network, Schedule
from kvtrail.connector.known.nixl.stand_in.threads import SideChannel

BLOCK = 64
BLOCKS = 4
MOST = 40
"""Ticks within which everything ends."""


class Side:
    """An agent with memory of this number of blocks, all filled with one value."""

    def __init__(self, network: Network, name: str, number: int) -> None:
        self.agent = Agent(network, name)
        self.memory: Any = np.full((BLOCKS, BLOCK), number, np.uint8)
        self.start = self.memory.ctypes.data
        self.registered = self.agent.get_reg_descs([(self.start, self.memory.nbytes, 0, "")], "DRAM")
        self.agent.register_memory(self.registered)
        self.rows = [(self.start + at * BLOCK, BLOCK, 0) for at in range(BLOCKS)]


class Two:
    """One agent that reads from another one."""

    def __init__(self, **schedule: Any) -> None:
        self.network = Network(Schedule(**schedule))
        self.reader, self.giver = Side(self.network, "d", 1), Side(self.network, "p", 2)
        agent = self.reader.agent
        self.peer = agent.add_remote_agent(self.giver.agent.get_agent_metadata())
        self.local = agent.prep_xfer_dlist(OWN, agent.get_xfer_descs(self.reader.rows, "DRAM"))
        self.remote = agent.prep_xfer_dlist(self.peer, agent.get_xfer_descs(self.giver.rows, "DRAM"))

    def read(self, into: list[int], of: list[int], message: bytes = b"r-0:1") -> int:
        handle = self.reader.agent.make_prepped_xfer("READ", self.local, into, self.remote, of, notif_msg=message)
        self.reader.agent.transfer(handle)
        return handle

    def state(self, handle: int) -> str:
        return self.reader.agent.check_xfer_state(handle)

    def ended(self, handle: int) -> str:
        for _ in range(MOST):
            self.network.tick()
            if (state := self.state(handle)) != "PROC":
                return state
        raise AssertionError("the transfer never ends")

    def heard(self) -> list[bytes]:
        for _ in range(MOST):
            self.network.tick()
        return self.giver.agent.get_new_notifs().get("d", [])


def test_the_bytes_of_the_blocks_that_are_named_move_between_the_two_memories() -> None:
    two = Two(seed=3)
    two.giver.memory[2] = 7
    handle = two.read([0, 3], [2, 1])
    assert two.state(handle) == "PROC"
    assert two.reader.memory.max() == 1, "nothing moves before a tick"
    assert two.ended(handle) == "DONE"
    assert [row[0] for row in two.reader.memory] == [7, 1, 1, 2]
    assert two.heard() == [b"r-0:1"]


def test_what_is_read_is_what_is_there_when_the_bytes_move() -> None:
    """As with NIXL, it is not checked whether the blocks are still the same request's."""
    two = Two(transfer_ticks=0)
    handle = two.read([0], [0])
    two.giver.memory[0] = 9
    assert two.ended(handle) == "DONE"
    assert two.reader.memory[0, 0] == 9


def test_a_transfer_may_fail_in_three_ways_and_says_so() -> None:
    found = set()
    for seed in range(20):
        two = Two(seed=seed, failing=1.0)
        try:
            handle = two.read([0, 1], [0, 1])
        except RuntimeError:
            found.add(("post", 0, 0))
            continue
        assert two.ended(handle) == "ERR", seed
        found.add(("later", int((two.reader.memory[:, 0] == 2).sum()), len(two.heard())))
    assert found == {("post", 0, 0), ("later", 1, 0), ("later", 2, 1)}


def test_messages_are_lost_repeated_and_out_of_order_but_not_without_a_reason() -> None:
    messages = [b"r-%d:1" % at for at in range(30)]
    heard: dict[str, list[bytes]] = {}
    schedules: dict[str, dict[str, Any]] = {
        "plain": {"message_ticks": 0},
        "late": {"message_ticks": 9},
        "lost": {"lost": 0.5},
        "repeated": {"repeated": 0.5},
    }
    for name, schedule in schedules.items():
        two = Two(seed=5, **schedule)
        for message in messages:
            two.reader.agent.send_notif(two.peer, message)
        heard[name] = two.heard()
        if name == "lost":
            assert sorted(heard[name] + two.network.lost) == sorted(messages)
            assert two.network.lost
        if name == "repeated":
            assert sorted(heard[name]) == sorted(messages + two.network.repeated)
            assert two.network.repeated
    assert heard["plain"] == messages
    assert heard["late"] != messages
    assert sorted(heard["late"]) == sorted(messages)


def test_a_transfer_between_descriptors_that_differ_is_refused() -> None:
    two = Two()
    with pytest.raises(RuntimeError, match="differ"):
        two.read([0, 1], [0])


def test_a_peer_that_has_left_is_read_no_more() -> None:
    two = Two(seed=1)
    handle = two.read([0], [0])
    two.giver.agent.deregister_memory(two.giver.registered)
    assert two.ended(handle) == "ERR"
    assert two.reader.memory.max() == 1


def test_a_transfer_that_is_released_moves_nothing_any_more() -> None:
    two = Two(seed=1)
    handle = two.read([0], [0])
    two.reader.agent.release_xfer_handle(handle)
    assert two.heard() == []
    assert two.reader.memory.max() == 1


def test_a_row_for_several_blocks_is_the_same_as_one_for_each() -> None:
    two = Two(seed=1)
    agent = two.reader.agent
    strided = [(side.start, BLOCK, 0, BLOCK, BLOCKS) for side in (two.reader, two.giver)]
    own, other = agent.prep_xfer_dlist(OWN, strided[:1]), agent.prep_xfer_dlist(two.peer, strided[1:], mem_type="DRAM")
    agent.transfer(agent.make_prepped_xfer("READ", own, [1, 3], other, [0, 2], notif_msg=b""))
    two.heard()
    assert two.reader.memory[:, 0].tolist() == [1, 2, 1, 2]


def test_a_side_channel_answers_by_the_listeners_own_code_and_not_after_its_end() -> None:
    import zmq

    channel = SideChannel(Network())

    def listener(answers: dict[bytes, bytes]) -> None:
        with channel.socket(zmq.ROUTER, "tcp://localhost:1") as socket:
            socket.setsockopt(zmq.RCVTIMEO, 1000)
            while True:
                identity, _, asked = socket.recv_multipart()
                socket.send_multipart((identity, b"", answers[asked], b"now"))

    thread = channel.thread(target=listener, args=({b"who": b"me"},))
    thread.start()
    assert channel.answer("tcp://localhost:1", b"who") == [b"me", b"now"]
    with channel.socket(zmq.REQ, "tcp://localhost:1") as socket:
        socket.send(b"who")
        assert socket.recv_multipart() == [b"me", b"now"]
    with pytest.raises(zmq.Again):
        channel.answer("tcp://localhost:2", b"who")
    thread.join()
    with pytest.raises(zmq.Again):
        channel.answer("tcp://localhost:1", b"who")
