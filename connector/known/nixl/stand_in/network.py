"""A network in memory that replaces the `nixl` package. It moves the real bytes, at times drawn from a seed.

Time is counted in ticks, which the caller makes. In each tick, transfers that are due move their bytes, and messages that are
due arrive. As in NIXL, the message of a transfer is sent after its bytes have moved.
"""

from __future__ import annotations

import ctypes
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

HEARTBEAT = b"HB:"
"""Prefix of messages that only extend leases."""
OWN = "NIXL_INIT_AGENT"
"""The agent name in descriptors of an agent's own memory."""
LOADED, GONE = "DONE", "ERR"
"""NIXL's states of a transfer that has succeeded or failed; before, the state is `PROC`."""


class Fails(StrEnum):
    """When a transfer fails."""

    POST = "at the post"
    IN_FLIGHT = "in flight"
    """After half of its bytes have moved; no message is sent."""
    AFTER = "after"
    """After all of its bytes have moved and the message was sent."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The behavior of a network, drawn from a seed.

    Attributes:
        transfer_ticks, message_ticks, handshake_ticks: the largest random delay of a transfer, a message and a handshake, in
            ticks. Each takes one tick more than its delay.
        lost, repeated: the share of readers' reports that never arrive, or arrive twice.
        heartbeats_lost: the share of heartbeats that never arrive.
        failing: the share of transfers that fail, in one of the ways of `Fails`.
    """

    seed: int = 0
    transfer_ticks: int = 3
    message_ticks: int = 3
    handshake_ticks: int = 2
    lost: float = 0.0
    repeated: float = 0.0
    heartbeats_lost: float = 0.0
    failing: float = 0.0


class Prepared(NamedTuple):
    """Descriptors of one agent's memory. Each row has an address, a length and a device."""

    agent: str
    descriptors: Any


@dataclass(slots=True, eq=False)
class Transfer:
    """A transfer of bytes between two agents."""

    reader: str
    peer: str
    copies: list[tuple[int, int, int]]
    """Target, source and length."""
    message: bytes | None
    moves_at: int = 0
    ends_at: int = 0
    """The tick at which its reader sees the end, possibly after its peer."""
    fails: Fails | None = None


class _Message(NamedTuple):
    at: int
    sender: str
    receiver: str
    text: bytes


class Network:
    """The network that all agents share.

    Attributes:
        lost, repeated: the readers' reports that were lost or repeated.
        failed: the failed transfers, each with its message and the way in which it failed.
    """

    def __init__(self, schedule: Schedule = Schedule()) -> None:
        self.schedule = schedule
        self.agents: dict[str, Agent] = {}
        self.now = 0
        self.lost: list[bytes] = []
        self.repeated: list[bytes] = []
        self.failed: list[tuple[bytes, Fails]] = []
        self._rng = random.Random(schedule.seed)
        self._moving: list[Transfer] = []
        self._messages: list[_Message] = []
        self._tasks: list[tuple[int, Callable[[], None]]] = []

    def tick(self) -> None:
        """Advance by one tick."""
        self.now += 1
        for transfer in [each for each in self._moving if each.moves_at <= self.now]:
            self._moving.remove(transfer)
            self._move(transfer)
        for message in [each for each in self._messages if each.at <= self.now]:
            self._messages.remove(message)
            if (receiver := self.agents.get(message.receiver)) is not None:
                receiver.arrived[message.sender].append(message.text)
        for task in [each for each in self._tasks if each[0] <= self.now]:
            self._tasks.remove(task)
            task[1]()

    def later(self, task: Callable[[], None]) -> None:
        """Run a task in a later tick, as a separate thread would: a handshake."""
        self._tasks.append((self._within(self.schedule.handshake_ticks), task))

    def soon(self, task: Callable[[], None]) -> None:
        """Run a task in the next tick."""
        self._tasks.append((self.now + 1, task))

    def post(self, transfer: Transfer) -> None:
        """Start a transfer.

        Raises:
            RuntimeError: it fails at once.
        """
        if self._rng.random() < self.schedule.failing:
            transfer.fails = self._rng.choice(list(Fails))
            self.failed.append((transfer.message or b"", transfer.fails))
            if transfer.fails is Fails.POST:
                raise RuntimeError("NIXL_ERR_BACKEND")
        transfer.moves_at = self._within(self.schedule.transfer_ticks)
        transfer.ends_at = transfer.moves_at + self._rng.randrange(self.schedule.transfer_ticks + 1)
        self._moving.append(transfer)

    def cancel(self, transfer: Transfer) -> None:
        """Stop a transfer: no further bytes move."""
        if transfer in self._moving:
            self._moving.remove(transfer)

    def send(self, sender: str, receiver: str, text: bytes) -> None:
        """Send a message."""
        schedule, report = self.schedule, not text.startswith(HEARTBEAT)
        chance = self._rng.random()
        if chance < (schedule.lost if report else schedule.heartbeats_lost):
            if report:
                self.lost.append(text)
            return
        times = 1
        if report and self._rng.random() < schedule.repeated:
            self.repeated.append(text)
            times = 2
        for _ in range(times):
            self._messages.append(_Message(self._within(schedule.message_ticks), sender, receiver, text))

    def _move(self, transfer: Transfer) -> None:
        if not {transfer.reader, transfer.peer} <= self.agents.keys():  # one of the two has died
            transfer.fails = transfer.fails or Fails.IN_FLIGHT
            return
        half = len(transfer.copies) // 2 if transfer.fails is Fails.IN_FLIGHT else len(transfer.copies)
        for target, source, length in transfer.copies[:half]:
            ctypes.memmove(target, source, length)
        if transfer.message is not None and transfer.fails is not Fails.IN_FLIGHT:
            self.send(transfer.reader, transfer.peer, transfer.message)

    def _within(self, ticks: int) -> int:
        return self.now + 1 + self._rng.randrange(ticks + 1)


def _one_by_one(descriptors: Any) -> Any:
    """Descriptors with one block per row. From vLLM 0.33 on a row may describe several blocks: after the device it has the
    distance between two blocks in bytes, and their number."""
    if descriptors.shape[-1] == 3:
        return descriptors
    counts = descriptors[:, 4].astype(np.int64)
    rows = np.repeat(descriptors, counts, axis=0)
    number = np.arange(len(rows), dtype=np.uint64) - np.repeat(np.cumsum(counts) - counts, counts).astype(np.uint64)
    rows[:, 0] += number * rows[:, 3]
    return rows[:, :3]


class Agent:
    """The agent of one worker, with the methods of `nixl_agent` that vLLM's NIXL connectors call.

    Attributes:
        arrived: messages that were not fetched yet, by sender.
    """

    def __init__(self, network: Network, name: str) -> None:
        self.name, self._network = name, network
        self.arrived: dict[str, list[bytes]] = defaultdict(list)
        self._prepared: dict[int, Prepared] = {}
        self._transfers: dict[int, Transfer] = {}
        self._peers: set[str] = set()
        self._handles = 0
        network.agents[name] = self

    # Memory.

    def get_reg_descs(self, ranges: Sequence[tuple[int, int, int, str]], mem_type: str) -> Any:
        return ranges

    def register_memory(self, descs: Any, mem_type: str | None = None, backends: Any = None) -> Any:
        return descs

    def deregister_memory(self, descs: Any) -> None:
        """Remove the agent from the network: a worker deregisters all of its memory when it ends."""
        self._network.agents.pop(self.name, None)

    def get_xfer_descs(self, descriptors: Any, mem_type: str) -> Any:
        return np.asarray(descriptors, np.uint64)

    def prep_xfer_dlist(self, agent_name: str, descs: Any, mem_type: str | None = None) -> int:
        name = self.name if agent_name == OWN else agent_name
        return self._held(self._prepared, Prepared(name, _one_by_one(np.asarray(descs, np.uint64))))

    def release_dlist_handle(self, handle: int) -> None:
        del self._prepared[handle]

    # Peers.

    def get_agent_metadata(self) -> bytes:
        return self.name.encode()

    def add_remote_agent(self, metadata: bytes) -> str:
        name = metadata.decode()
        self._peers.add(name)
        return name

    def remove_remote_agent(self, agent: str) -> None:
        self._peers.remove(agent)

    def check_remote_metadata(self, agent: str) -> bool:
        return agent in self._peers

    # Transfers.

    def make_prepped_xfer(
        self, operation: str, local: int, locals_: Any, remote: int, remotes: Any, notif_msg: bytes | None = None
    ) -> int:
        mine, theirs = self._prepared[local], self._prepared[remote]
        here, there = mine.descriptors[np.asarray(locals_)], theirs.descriptors[np.asarray(remotes)]
        if here.shape != there.shape or (here[:, 1] != there[:, 1]).any():
            raise RuntimeError("NIXL_ERR_INVALID_PARAM: descriptors of both sides differ")
        target, source = (here, there) if operation == "READ" else (there, here)
        copies = [(int(to[0]), int(of[0]), int(to[1])) for to, of in zip(target, source, strict=True)]
        return self._held(self._transfers, Transfer(self.name, theirs.agent, copies, notif_msg))

    def transfer(self, handle: int) -> str:
        self._network.post(self._transfers[handle])
        return "PROC"

    def check_xfer_state(self, handle: int) -> str:
        transfer = self._transfers[handle]
        if transfer.ends_at > self._network.now:
            return "PROC"
        return LOADED if transfer.fails is None else GONE

    def get_xfer_telemetry(self, handle: int) -> Any:
        """NIXL's measurements of a transfer, with a duration of 0. vLLM before 0.32 fails without them."""
        copies = self._transfers[handle].copies
        total = sum(length for _, _, length in copies)
        return SimpleNamespace(xferDuration=0, postDuration=0, totalBytes=total, descCount=len(copies))

    def release_xfer_handle(self, handle: int) -> None:
        self._network.cancel(self._transfers.pop(handle))

    # Messages.

    def send_notif(self, agent_name: str, notif_msg: bytes) -> None:
        if agent_name not in self._peers:
            raise RuntimeError("NIXL_ERR_NOT_FOUND")
        self._network.send(self.name, agent_name, notif_msg)

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        taken, self.arrived = dict(self.arrived), defaultdict(list)
        return taken

    def _held(self, held: dict[int, Any], thing: Any) -> int:
        self._handles += 1
        held[self._handles] = thing
        return self._handles
