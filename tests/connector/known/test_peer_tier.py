"""The OffloadingConnector's P2P tier, on two of vLLM's schedulers with vLLM's own tier, sessions and protocol: over the
in-memory `nixl` and a control transport of this process. What is recorded of its messages and writes is what passed there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import pytest

pytest.importorskip("vllm.v1.kv_offload.tiering.p2p.manager", reason="a vLLM without the tier")

from history import judge
from vllm.v1.kv_offload.tiering.p2p.control.base import ControlConnection, ControlTransport

from kvtrail.connector.known.nixl.stand_in import Clock
from kvtrail.connector.known.nixl.stand_in.network import Agent, Fails, Network, Schedule
from kvtrail.connector.simulate import in_memory
from kvtrail.connector.simulate.bare_scheduler import BareScheduler
from kvtrail.connector.simulate.run import of_its_own
from kvtrail.tracer.events.events import Event, Handoff, Notification, Xfer

P2P = "vllm.v1.kv_offload.tiering.p2p"
PORTS = {"p": 5710, "d": 5720}
PROMPT = list(range(3, 323))
BLOCKS = 10
"""Of the prompt."""
TO_P = {"remote_host": "localhost", "remote_port": PORTS["p"]}


class Wire(ControlConnection):
    """One end of a connection in this process."""

    def __init__(self, peer_id: str, transport: Wires) -> None:
        super().__init__(peer_id)
        self.inbox: list[dict[str, Any]] = []
        self._transport, self._alive = transport, True

    @property
    def alive(self) -> bool:
        return self._alive

    def send(self, msg: dict[str, Any]) -> None:
        if not self._alive:
            raise RuntimeError("closed")
        self._transport.deliver(self.peer_id, msg)

    def recv(self) -> Sequence[dict[str, Any]]:
        arrived, self.inbox = self.inbox, []
        return arrived

    def mark_dead(self) -> None:
        self._alive = False

    def close(self) -> None:
        self._alive = False


class Wires(ControlTransport):
    """Delivers at once, unless the message's type is among those to lose."""

    everyone: ClassVar[dict[str, Wires]] = {}
    lost: ClassVar[set[str]] = set()

    def __init__(self, local_id: str, host: str, port: int) -> None:
        self._local_id, self._connections, self._new = local_id, dict[str, Wire](), list[Wire]()
        self.everyone[local_id] = self

    def connect(self, peer_id: str) -> ControlConnection:
        self._connections[peer_id] = wire = Wire(peer_id, self)
        return wire

    def poll(self) -> Sequence[ControlConnection]:
        new, self._new = self._new, []
        return new

    def deliver(self, peer_id: str, msg: dict[str, Any]) -> None:
        if (peer := self.everyone.get(peer_id)) is None or msg["type"] in self.lost:
            return
        if self._local_id not in peer._connections:
            peer._connections[self._local_id] = Wire(self._local_id, peer)
            peer._new.append(peer._connections[self._local_id])
        peer._connections[self._local_id].inbox.append(msg)

    def close(self) -> None:
        self.everyone.pop(self._local_id, None)


class Pair:
    """An engine that prefills and one that decodes."""

    def __init__(self, folder: Path, schedule: Schedule, exporters: Sequence[Any]) -> None:
        self.network, self.clock, self._exporters = Network(schedule), Clock(), exporters
        self._folder = folder
        self.p, self.d = (self._engine(name) for name in PORTS)

    def _engine(self, name: str) -> BareScheduler:
        extra = {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": 3_000_000,
            "secondary_tiers": [{"type": "p2p", "host": "localhost", "port": PORTS[name]}],
        }
        connector = of_its_own({"kv_connector": "TracedOffloadingConnector", "kv_connector_extra_config": extra})
        connector["engine_id"] = name
        return BareScheduler(self._folder / "model", connector)  # one model for both

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.network.tick()
            self.p.step()
            self.d.step()

    def prefill(self, number: int = 0, prompt: list[int] = PROMPT) -> None:
        self.p.add(f"p-{number}", prompt, 1, transfer={"remote_decoder": {"kv_request_id": f"k-{number}"}})

    def decode(self, number: int = 0, prompt: list[int] = PROMPT) -> None:
        self.d.add(f"d-{number}", prompt, 4, transfer={"remote_prefiller": {"kv_request_id": f"k-{number}"} | TO_P})

    def run(self) -> None:
        for _ in range(200):
            self.tick()
            if not (self.p.scheduler.has_unfinished_requests() or self.d.scheduler.has_unfinished_requests()):
                break
        self.tick(3)

    def events(self) -> list[list[Event]]:
        in_memory.flush()
        return [each.events() for each in self._exporters]

    def close(self) -> None:
        self.p.close()
        self.d.close()


@pytest.fixture
def pairs(tmp_path: Path) -> Iterator[Callable[..., Pair]]:
    with ExitStack() as stack:
        exporters = stack.enter_context(in_memory.exporters())
        made: list[Pair] = []

        def build(**schedule: Any) -> Pair:
            made.append(Pair.__new__(Pair))
            pair = made[-1]
            stack.enter_context(_installed(pair))
            Pair.__init__(pair, tmp_path, Schedule(**schedule), exporters)
            return pair

        yield build
        for pair in made:
            pair.close()
        Wires.lost.clear()


@contextmanager
def _installed(pair: Pair) -> Iterator[None]:
    """A pair that is made inside talks over its own network, by its own clock."""
    time = SimpleNamespace(monotonic=lambda: pair.clock.now_s, sleep=lambda _: None)
    with ExitStack() as stack:
        for place, value in {
            f"{P2P}.data.nixl._NixlAgent": lambda name, _: Agent(pair.network, name),
            f"{P2P}.data.nixl._NixlAgentConfig": lambda **_: None,
            f"{P2P}.manager.ZmqTransport": Wires,
            f"{P2P}.manager.time": time,
            f"{P2P}.session.client.time": time,
            f"{P2P}.session.server.time": time,
        }.items():
            stack.enter_context(mock.patch(place, value))
        yield


def said(events: Sequence[Event], request: str | None) -> list[str]:
    """What is recorded of a request's messages and writes, in a few words each."""
    words = []
    for event in events:
        if event.request != request:
            continue
        if isinstance(event, Notification):
            words.append(f"{event.notification} {event.direction} {event.blocks_count}")
        elif isinstance(event, Xfer):
            words.append(f"{event.xfer_op} {event.xfer_state} {event.blocks_count}")
    return words


def blocks(words: Sequence[str], beginning: str) -> int:
    """Of how many blocks these say so."""
    return sum(int(each.split()[-1]) for each in words if each.startswith(beginning))


def found(*sides: Sequence[Event]) -> set[str]:
    detector = judge([event for side in sides for event in side])
    return {finding.rule for held in detector.findings.values() for finding in held.values()}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_hand_off_is_recorded_on_both_sides(pairs: Callable[..., Pair], is_first: bool) -> None:
    """Whichever engine is asked first: what is said of a request that P does not have yet is recorded with it."""
    pair = pairs()
    if is_first:
        pair.prefill()
        pair.run()
    pair.decode()
    pair.tick(3)
    if not is_first:
        pair.prefill()
    pair.run()
    p, d = pair.events()
    first, *writes, last = said(p, "p-0")
    assert (first, last) == (f"registration received {BLOCKS}", "done sent None")
    assert blocks(writes, "write posted") == blocks(writes, "write done") == BLOCKS
    assert said(d, "d-0") == [f"registration sent {BLOCKS}", "done received None"]
    assert (
        Counter(said(p, None))
        == Counter(said(d, None))
        == Counter(f"{kind} {way} None" for kind in ("connect", "connect_ack") for way in ("sent", "received"))
    )
    keys = [each.handoff_keys for side in (p, d) for each in side if isinstance(each, Handoff)]
    assert keys == [("kv_request_id:k-0",)] * 2
    assert found(p, d) == set()


def test_what_is_not_fetched_is_given_up_and_a_late_fetch_is_refused(pairs: Callable[..., Pair]) -> None:
    pair = pairs()
    pair.prefill()
    pair.run()
    tier: Any = pair.p.connectors[0].connector_scheduler.manager.secondary_tiers[0]
    for batch in tier._unbound_stores["k-0"]:
        batch.submitted_at = pair.clock.now_s  # its own default is a clock that no test can set
    pair.clock.now_s += 59
    pair.tick()
    assert said(pair.events()[0], "p-0") == []
    pair.clock.now_s += 2
    pair.tick(2)
    given_up = f"write failed {BLOCKS}"
    p, _ = pair.events()
    assert said(p, "p-0") == [given_up]
    assert next(each.reason for each in p if isinstance(each, Xfer)) == "no engine has fetched them within 60 s"
    pair.decode()
    pair.run()
    p, d = pair.events()
    assert said(p, "p-0") == [given_up, f"registration received {BLOCKS}", "refusal sent None"]
    assert said(d, "d-0") == [f"registration sent {BLOCKS}", "refusal received None"]
    assert found(p, d) == set()


def test_a_fetch_that_is_not_answered_is_aborted(pairs: Callable[..., Pair]) -> None:
    pair = pairs()
    pair.prefill()
    pair.run()
    Wires.lost.add("transfer_done")
    pair.decode()
    pair.tick(20)
    pair.clock.now_s += 31
    pair.run()
    p, d = pair.events()
    assert said(d, "d-0") == [f"registration sent {BLOCKS}", "abort sent None", "abort_ack received None"]
    assert said(p, "p-0")[-3:] == ["done sent None", "abort received None", "abort_ack sent None"]


@pytest.mark.parametrize("seed", range(3))
def test_writes_that_fail_are_recorded_with_the_reason(pairs: Callable[..., Pair], seed: int) -> None:
    """At the post, in flight or after, as the network's schedule says. The first of these raises, in vLLM 0.32 through the
    scheduler's step; what was seen of it is recorded in the next step."""
    pair = pairs(seed=seed, failing=0.4)
    for number in range(4):
        prompt = [number + 3, *PROMPT[1:]]
        pair.prefill(number, prompt)
        pair.run()
        pair.decode(number, prompt)
        with suppress(RuntimeError):
            pair.run()
        pair.tick()
    pair.tick(20)
    p, _ = pair.events()
    assert pair.network.failed
    writes = [each for each in p if isinstance(each, Xfer)]
    ends = Counter(each.xfer_state for each in writes)
    not_posted = [each for each in writes if each.reason == "NIXL_ERR_BACKEND"]
    assert len(not_posted) == sum(fails is Fails.POST for _, fails in pair.network.failed)
    assert ends["posted"] == ends["done"] + ends["failed"] - len(not_posted)
    assert {each.reason for each in writes if each.xfer_state == "failed"} <= {
        "NIXL_ERR_BACKEND", "the transfer failed", "it was cancelled",
    }  # fmt: skip
    assert all(each.reason for each in writes if each.xfer_state == "failed")


def test_a_lookup_in_another_engines_store_is_recorded_without_a_hand_off(pairs: Callable[..., Pair]) -> None:
    pair = pairs()
    pair.p.add("p-0", PROMPT, 1)
    pair.run()
    pair.d.add("d-0", PROMPT, 4, transfer={"remote_kv_source": {"kv_request_id": "k-0"} | TO_P})
    pair.run()
    p, d = pair.events()
    words = said(d, "d-0")
    assert words[0].startswith("lookup sent")
    assert "done received None" in words
    assert not [each for side in (p, d) for each in side if isinstance(each, Handoff)]
