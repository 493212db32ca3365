"""The path for a GPU, without one: what it would run there is a legal program, and right in every order that streams allow.

Neither shows that it runs on a GPU, or how fast.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("vllm", reason="the plan is vLLM's")

from kvtrail.connector.offload import transfers
from kvtrail.connector.offload.config import OffloadConfig
from kvtrail.connector.offload.groups import Group
from kvtrail.connector.offload.host_memory import HostMemory, _Tensors
from kvtrail.connector.offload.plan import Copy
from kvtrail.connector.offload.transfers import CopyStream, Transfers
from kvtrail.tracer.events.cache_groups import SLIDING, CacheGroup

BLOCKS, SLOTS = 12, 6
CONFIG = OffloadConfig(
    8, 4, (Group(4, 1, ("full",)), Group(4, 1, ("window",), CacheGroup(SLIDING, window=4))), SLOTS, load_async=True
)


def copies(slot: int, blocks: list[int]) -> list[Copy]:
    """A chunk: two blocks of full attention and one of a window."""
    return [Copy("r", 0, 8, slot, 0, tuple(blocks[:2]), ""), Copy("r", 0, 8, slot, 0, tuple(blocks[2:3]), "", 1)]


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("shape", [(BLOCKS, 4, 8), (2, BLOCKS, 4, 8), (2 * BLOCKS, 2, 8)])
def test_on_a_gpu_every_tensor_is_where_it_has_to_be(shape: tuple[int, ...]) -> None:
    """An index on the wrong device raises, as a tensor of the wrong shape does."""
    with FakeTensorMode():
        memory = HostMemory(CONFIG, num_blocks=BLOCKS)
        memory.register(
            {name: torch.empty(shape, device="cuda:0", dtype=torch.bfloat16) for name in ("full", "window")}
        )
        assert memory.device == torch.device("cuda:0")
        assert {type(part) for part in memory._parts} == {_Tensors}
        assert all(part._slots.device.type == "cpu" for part in memory._parts if isinstance(part, _Tensors))
        assert memory._blocks(copies(0, [1, 2, 3])).device == memory.device
        memory.store([*copies(0, [1, 2, 3]), *copies(1, [4, 5, 6])])
        memory.load([*copies(1, [1, 2, 3]), *copies(0, [9, 8, 7])])


def test_an_index_on_the_cpu_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostMemory, "_blocks", lambda self, copies: torch.tensor([1, 2]))
    with FakeTensorMode():
        memory = HostMemory(CONFIG, num_blocks=BLOCKS)
        memory.register({"full": torch.empty((BLOCKS, 4, 8), device="cuda:0")})
        with pytest.raises(Exception, match="device"):
            memory.store(copies(0, [1, 2, 3])[:1])


class Machine:
    """Stands in for `torch.cuda`. Work is queued on the current stream; at any moment, any stream goes on if its next work
    waits for nothing, by seed."""

    def __init__(self, seed: int, forgotten: int | None = None) -> None:
        """`forgotten`: the number of a wait that is left out."""
        self._rng = random.Random(seed)
        self._streams: list[WorkQueue] = []
        self._current = self.Stream(None)
        self._forgotten, self.waits = forgotten, 0

    def Stream(self, device: Any) -> WorkQueue:
        self._streams.append(WorkQueue(self))
        return self._streams[-1]

    def current_stream(self, device: Any) -> WorkQueue:
        return self._current

    @contextmanager
    def stream(self, stream: WorkQueue) -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        self._current = before

    def queue(self, work: Callable[[], Any]) -> None:
        self._current.work.append(work)

    def leaves_out(self) -> bool:
        self.waits += 1
        return self.waits - 1 == self._forgotten

    def go_on(self, steps: int | None = None) -> None:
        """Run so much work, or all."""
        while steps is None or steps > 0:
            ready = [stream for stream in self._streams if stream.is_ready()]
            if not ready:
                assert not any(stream.work for stream in self._streams), "streams wait for each other for ever"
                return
            work = self._rng.choice(ready).work.popleft()
            if callable(work):
                work()
            else:
                work.recorded = True
            steps = None if steps is None else steps - 1

    def go_on_somewhat(self) -> None:
        self.go_on(self._rng.choice([0, 0, 1, 3, 10]))


class Event:
    """A point in a stream; or, in another, that one waits for it."""

    def __init__(self, machine: Machine) -> None:
        self.recorded = False
        self._machine = machine

    def query(self) -> bool:
        self._machine.go_on_somewhat()
        return self.recorded


class WorkQueue:
    """Work in order: calls, events to record, and events to wait for in a tuple."""

    def __init__(self, machine: Machine) -> None:
        self.work: deque[Any] = deque()
        self._machine = machine

    def record_event(self) -> Event:
        self.work.append(event := Event(self._machine))
        return event

    def wait_event(self, event: Event) -> None:
        if not self._machine.leaves_out():
            self.work.append((event,))

    def wait_stream(self, other: WorkQueue) -> None:
        self.wait_event(other.record_event())

    def is_ready(self) -> bool:
        while self.work and isinstance(self.work[0], tuple) and self.work[0][0].recorded:
            self.work.popleft()
        return bool(self.work) and not isinstance(self.work[0], tuple)


class Queued(TorchDispatchMode):
    """What tensors are made of is made at once, and what they hold when the stream comes to it."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._machine = machine

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = call._schema.name
        if call.is_view or "empty" in name:
            return call(*args, **kwargs)
        if call._schema.is_mutable:
            self._machine.queue(lambda: call(*args, **kwargs))
            return args[0]
        assert name in ("aten::index_select", "aten::cat", "aten::_to_copy"), name
        made = torch.full_like(call(*args, **kwargs), -1.0)  # of this shape, and without what it will hold
        self._machine.queue(lambda: made.copy_(call(*args, **kwargs)))
        return made


class Played:
    """An engine's steps on two streams, and what is wrong in them."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch, forgotten: int | None = None) -> None:
        self.machine = Machine(seed, forgotten)
        monkeypatch.setattr(transfers, "cuda", self.machine)
        monkeypatch.setattr(HostMemory, "_blocks", lambda self, some: torch.tensor([b for c in some for b in c.blocks]))
        monkeypatch.setattr("kvtrail.connector.offload.host_memory._Rows", _Tensors)
        self._rng = random.Random(seed)
        self.caches = {name: torch.full((BLOCKS, 4), -1.0) for name in ("full", "window")}
        memory = HostMemory(CONFIG, num_blocks=BLOCKS)
        memory.register(self.caches)
        memory.device = SimpleNamespace(type="cuda")  # type: ignore[assignment]
        self.transfers = Transfers(memory, beside=True)
        assert isinstance(self.transfers._queue, CopyStream)
        self.wrong: list[str] = []
        self.loads = 0
        slots: dict[int, float] = {}
        blocks: list[int] = list(range(BLOCKS))
        value = 0.0
        loading: tuple[list[int], float] | None = None
        for _ in range(24):
            used = loading[0] if loading else []
            mine = self._rng.sample([block for block in blocks if block not in used], 3)  # freed by whoever had them
            value += 1
            self.transfers.wait_for_blocks({*mine, *used})
            self._forward(mine, value)
            slot = self._rng.randrange(SLOTS)
            if slots and loading is None:
                from_slot = self._rng.choice(sorted(slots))
                into = self._rng.sample([block for block in blocks if block not in mine], 3)
                loading = into, slots[from_slot]
                self.transfers.wait_for_blocks({*into})
                self._copy(self.transfers.load, copies(from_slot, into))
            self._copy(self.transfers.store, copies(slot, mine))
            slots[slot] = value
            self.machine.go_on_somewhat()
            if self.transfers.take_loaded():
                assert loading is not None
                self._read(*loading)
                self.loads += 1
                loading = None
        self.machine.go_on()

    def _copy(self, copy: Callable[[list[Copy]], None], some: list[Copy]) -> None:
        with Queued(self.machine):
            copy(some)

    def _forward(self, blocks: list[int], value: float) -> None:
        """The engine writes these blocks, and reads them again."""

        def write() -> None:
            self.caches["full"][blocks[:2]] = value
            self.caches["window"][blocks[2]] = value

        self.machine.queue(write)

    def _read(self, blocks: list[int], value: float) -> None:
        def read() -> None:
            held = [*self.caches["full"][blocks[:2]].flatten(), *self.caches["window"][blocks[2]]]
            if any(number != value for number in held):
                self.wrong.append(f"{value} was to be loaded, and there is {held}")

        self.machine.queue(read)


def test_what_is_loaded_is_right_in_every_order(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = 0
    for seed in range(60):
        played = Played(seed, monkeypatch)
        assert played.wrong == [], seed
        loads += played.loads
    assert loads > 100


def test_waits_that_are_left_out_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time, of one kind: of a copy for the engine, and of the engine for a store."""
    found = 0
    for seed in range(60):
        for forgotten in range(0, 40, 3):
            found += bool(Played(seed, monkeypatch, forgotten).wrong)
        if found > 5:
            return
    pytest.fail(f"a wait was left out many times, and found {found} times")


@pytest.mark.parametrize("left_out", ["copies wait for the engine", "the engine waits for stores", "loads are awaited"])
def test_each_kind_of_wait_is_needed(left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if left_out == "copies wait for the engine":
        monkeypatch.setattr(WorkQueue, "wait_stream", lambda self, other: None)
    elif left_out == "the engine waits for stores":
        monkeypatch.setattr(Transfers, "wait_for_blocks", lambda self, given: None)
    else:
        monkeypatch.setattr(Event, "query", lambda self: True)
        monkeypatch.setattr(WorkQueue, "wait_event", lambda self, event: None)
    assert any(Played(seed, monkeypatch).wrong for seed in range(40))
