"""MoRIIO's messages, as far as its Python goes without a GPU and the `mori` package: vLLM's own wrappers and writer, and the
methods of its own workers and scheduler, on objects that were made without their constructors, which need both. What an
engine says is put into bytes by vLLM's own code, and handled by that of the other engine."""

from __future__ import annotations

import importlib.util
import sys
from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest
from processes import SLOW_S, free_port

from kvtrail.connector.known.moriio.probe import MoriioProbe
from kvtrail.connector.known.probe import ProbeEvent
from kvtrail.tracer.events.events import FIELDS
from kvtrail.tracer.events.semconv import Kind

MSGPACK: Any = SimpleNamespace(
    loads=msgspec.msgpack.decode,
    dumps=msgspec.msgpack.encode,
    exceptions=SimpleNamespace(ExtraData=msgspec.DecodeError, UnpackException=msgspec.DecodeError),
)
"""For the `msgpack` package, which these modules import and vLLM does not require; the format is the same."""


PACKAGE = "vllm.distributed.kv_transfer.kv_connector.v1.moriio"


def _of_vllm(*names: str) -> list[Any]:
    """Modules of vLLM's. Where `msgpack` is missing, no other test finds them imported."""
    is_missing = importlib.util.find_spec("msgpack") is None
    if is_missing:
        sys.modules["msgpack"] = MSGPACK
    try:
        return [importlib.import_module(f"{PACKAGE}.moriio_{name}") for name in names]
    except ImportError:
        pytest.skip("a vLLM without this connector", allow_module_level=True)
    finally:
        if is_missing:
            for name in [each for each in sys.modules if each == "msgpack" or each.startswith(f"{PACKAGE}.")]:
                del sys.modules[name]


moriio, moriio_engine, common = _of_vllm("connector", "engine", "common")
READ, WRITE = common.MoRIIOMode.READ, common.MoRIIOMode.WRITE
LAYERS = ("layers.0", "layers.1")
OURS, THEIRS = [[7, 8, 9]], [[1, 2, 3]]
TRANSFER, HOST, PORT = "tx-0", "10.0.0.1", 61005
CONFIG = SimpleNamespace(defer_timeout=60.0, recv_abort_timeout=120.0, transfer_timeout=30.0)


class Status:
    """What the `mori` package says of a transfer."""

    def __init__(self) -> None:
        self.state = "PROC"

    def Succeeded(self) -> bool:
        return self.state == "DONE"

    def Failed(self) -> bool:
        return self.state == "ERR"

    def Message(self) -> str:
        return "IBV_WC_RETRY_EXC_ERR"

    def Code(self) -> int:
        return 12


class Engine:
    """One engine's worker, with its probe. What it sends goes to `other` at once."""

    def __init__(self, *, is_producer: bool, mode: Any, tp_size: int = 1) -> None:
        self.worker = worker = moriio.MoRIIOConnectorWorker.__new__(moriio.MoRIIOConnectorWorker)
        self.is_producer, self.statuses, self.lost = is_producer, list[Status](), False
        self.other: Engine | None = None
        worker.is_producer, worker.mode, worker.world_size, worker.tp_rank = is_producer, mode, tp_size, 0
        worker.moriio_config, worker._has_mamba, worker.use_mla = CONFIG, False, False
        worker.transfer_id_to_request_id, worker._pending_unmapped_acks = {}, []
        worker._consumer_notification_counts, worker._completed_consumer_notifications = {}, set()
        worker._unmatched_write_completions, worker._invalid_block_ids = set(), set()
        worker._recving_transfers, worker._recving_transfers_start = defaultdict(dict), {}
        worker._recving_transfers_callback_addr, worker._recving_local_blocks = {}, {}
        worker._reads_issued_this_step, worker._mamba_reads_this_step = [], []
        worker.layer_name_to_local_kv_cache_metadata = dict.fromkeys(LAYERS)
        worker.layer_to_group = dict.fromkeys(LAYERS, 0)
        worker.kv_caches = {name: SimpleNamespace(shape=(1,), stride=lambda: (1,), dtype=None) for name in LAYERS}
        worker._get_built_session = lambda engine_id: ([object()] * 2, SimpleNamespace())
        worker._region_session_indices = lambda layer: [0]
        worker._is_mamba_layer = lambda layer: False
        worker._compute_block_transfer_offsets = lambda *_, **__: ([0], [0], [1])
        worker.moriio_wrapper = wrapper = moriio_engine.MoRIIOWrapper()
        wrapper.read_remote_data = wrapper.write_remote_data = lambda *_: self._status()
        wrapper.paths = defaultdict(lambda: SimpleNamespace(send=self._send, close=lambda **_: None))
        wrapper.paths[f"tcp://{HOST}:{PORT}"]  # as if it were connected
        worker._writer = moriio_engine.MoRIIOWriter(worker)
        worker._writer.ensure_worker_started = lambda: None  # the thread's loop is called here
        worker._heartbeat = None
        self.connector = SimpleNamespace(connector_worker=worker, connector_scheduler=None)
        self.probe = MoriioProbe()
        self.probe.made(self.connector)

    def _status(self) -> Status:
        self.statuses.append(Status())
        return self.statuses[-1]

    def _send(self, message: bytes) -> None:
        if self.lost:
            raise ConnectionError("no route")
        if self.other is not None:
            with self.other.in_role():
                self.other.worker.moriio_wrapper._handle_message(message)

    def in_role(self) -> Any:
        """vLLM keeps the role of its process in one place."""
        role = common.ROLE.PRODUCER if self.is_producer else common.ROLE.CONSUMER
        return mock.patch.object(moriio_engine, "get_role", return_value=role)

    def report(self) -> tuple[set[str], set[str]]:
        with self.in_role():
            answer: tuple[set[str], set[str]] = self.worker.get_finished()
        return answer

    def seen(self) -> list[ProbeEvent]:
        return list(self.probe.reported(self.connector, None))

    def read(self, ours: Sequence[Sequence[int]] = OURS) -> None:
        self.worker._read_blocks(
            request_id="d-0", transfer_id=TRANSFER, dst_engine_id="p", local_block_ids=ours, remote_block_ids=THEIRS,
            remote_host=HOST, remote_notify_port=PORT, remote_tp_size=1, remote_dp_rank=0, chosen_tp=0,
        )  # fmt: skip

    def write(self) -> None:
        """The last chunk of the prompt has run: one task for each layer, as `save_kv_layer` makes them."""
        for layer in LAYERS:
            task = common.WriteTask(
                request_id="p-0", transfer_id=TRANSFER, dst_engine_id="d", local_block_ids=THEIRS[0],
                remote_block_ids_hint=None, layer_name=layer, event=SimpleNamespace(synchronize=lambda: None),
                remote_notify_port=PORT, remote_ip=HOST,
            )  # fmt: skip
            assert self.worker._writer.schedule_write(task)
        self.worker._writer.seal_pending_transfers()

    def work(self) -> None:
        """What the writer's thread does."""
        writer = self.worker._writer
        while not writer._write_task_q.empty():
            writer._deferred_tasks.append(writer._write_task_q.get())
        writer._process_deferred_tasks()


@pytest.fixture
def engines(request: pytest.FixtureRequest) -> tuple[Engine, Engine]:
    mode = request.param
    p, d = Engine(is_producer=True, mode=mode), Engine(is_producer=False, mode=mode)
    p.other, d.other = d, p
    return p, d


def words(events: Sequence[ProbeEvent]) -> list[str]:
    """What is reported, in a few words each."""
    return [" ".join(str(each) for each in _words(event) if each is not None) for event in events]


def _words(event: ProbeEvent) -> list[Any]:
    values = named(event)
    match event.kind:
        case Kind.XFER:
            return [event.request_id, values["xfer_op"], values["xfer_state"], values["blocks_count"], values["reason"]]
        case Kind.NOTIFICATION:
            return [
                event.request_id,
                values["notification"],
                values["direction"],
                values["blocks_count"],
                values["reason"],
            ]
    return [event.request_id, event.kind.value]


def named(event: ProbeEvent) -> dict[str, Any]:
    return dict(zip((each.field for each in FIELDS[event.kind]), event.values, strict=True))


@pytest.mark.parametrize("engines", [READ], indirect=True)
def test_a_read_and_its_report_are_recorded_on_both_sides(engines: tuple[Engine, Engine]) -> None:
    p, d = engines
    d.read()
    assert words(d.seen()) == ["d-0 read posted 3"]
    for status in d.statuses:
        status.state = "DONE"
    d.report()
    assert sorted(words(d.seen())) == ["d-0 done sent", "d-0 read done"]
    assert p.seen() == [], "P does not know yet which request that is"
    p.worker.transfer_id_to_request_id[TRANSFER] = "p-0"
    assert p.report() == ({"p-0"}, set())
    assert words(p.seen()) == ["p-0 kv.read"]


@pytest.mark.parametrize("engines", [READ], indirect=True)
def test_the_blocks_of_a_read_are_those_of_both_engines(engines: tuple[Engine, Engine]) -> None:
    _, d = engines
    d.read()
    (posted,) = d.seen()
    values = named(posted)
    assert (values["blocks_ids"], values["peer_blocks_ids"]) == ((7, 8, 9), (1, 2, 3))
    assert (values["peer"], values["peer_rank"], values["notifications_expected"]) == ("p", 0, 1)


@pytest.mark.parametrize("engines", [READ], indirect=True)
def test_a_read_that_fails_has_the_reason_of_its_transfer_or_its_time(
    engines: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, d = engines
    d.read()
    d.statuses[1].state = "ERR"
    d.report()
    assert "d-0 read failed IBV_WC_RETRY_EXC_ERR" in words(d.seen())
    d.read()
    d.worker._recving_transfers_start["d-0"] -= 121
    d.report()
    assert words(d.seen()) == ["d-0 read posted 3", "d-0 read failed not done within 120 s"]


@pytest.mark.parametrize("engines", [READ], indirect=True)
def test_a_request_that_needs_nothing_says_so(engines: tuple[Engine, Engine]) -> None:
    p, d = engines
    p.worker.transfer_id_to_request_id[TRANSFER] = "p-0"
    d.read(ours=[[]])
    assert words(d.seen()) == ["d-0 done sent"]
    assert words(p.seen()) == ["p-0 kv.read"]


@pytest.mark.parametrize("engines", [READ], indirect=True)
def test_a_report_that_cannot_be_sent_has_the_reason(engines: tuple[Engine, Engine]) -> None:
    _, d = engines
    d.lost = True
    with pytest.raises(ConnectionError):
        d.read(ours=[[]])
    assert words(d.seen()) == ["d-0 done sent no route"]


def a_scheduler(*, is_producer: bool) -> tuple[Any, MoriioProbe]:
    scheduler = moriio.MoRIIOConnectorScheduler.__new__(moriio.MoRIIOConnectorScheduler)
    scheduler.is_producer, scheduler.mode, scheduler.tp_size = is_producer, WRITE, 1
    scheduler._global_dp_rank, scheduler.paths, scheduler._defer_timeout = 0, {}, 60.0
    scheduler._deferred_send_deadlines, scheduler._pending_sent_acks = {}, {}
    scheduler.transfer_id_to_request_id, scheduler.request_id_to_transfer_id = {}, {}
    probe = MoriioProbe()
    probe.made(SimpleNamespace(connector_scheduler=scheduler, connector_worker=None))
    return scheduler, probe


def named_to(p: Engine, blocks: list[int]) -> list[ProbeEvent]:
    """The scheduler's side of the engine that decodes names blocks to the other one's worker."""
    scheduler, probe = a_scheduler(is_producer=False)
    scheduler.paths[f"tcp://{HOST}:{PORT}"] = SimpleNamespace(send=lambda message: _handled(p, message))
    scheduler.send_notify_block(req_id="d-0", transfer_id=TRANSFER, block_notify_list=blocks, host=HOST, port=PORT)
    return list(probe.reported(SimpleNamespace(), None))


def _handled(engine: Engine, message: bytes) -> None:
    with engine.in_role():
        engine.worker.moriio_wrapper._handle_message(message)


@pytest.mark.parametrize("engines", [WRITE], indirect=True)
def test_a_write_is_recorded_on_both_sides(engines: tuple[Engine, Engine]) -> None:
    p, d = engines
    assert words(named_to(p, OURS[0])) == ["d-0 registration sent 3"]
    p.write()
    p.worker.moriio_wrapper.waiting_for_transfer_complete = lambda statuses: None
    p.work()
    assert words(p.seen()) == [
        "p-0 registration received 3", "p-0 write posted 3", "p-0 write done 3", "p-0 done sent",
    ]  # fmt: skip
    d.worker.transfer_id_to_request_id[TRANSFER] = "d-0"
    assert d.report() == (set(), {"d-0"})
    assert words(d.seen()) == ["d-0 done received"]


@pytest.mark.parametrize("engines", [WRITE], indirect=True)
def test_a_write_that_fails_has_a_reason(engines: tuple[Engine, Engine]) -> None:
    p, _ = engines
    p.worker.transfer_id_to_request_id[TRANSFER] = "p-0"
    named_to(p, OURS[0])

    def fails(statuses: Any) -> None:
        raise common.TransferError("1/2 transfers failed")

    p.worker.moriio_wrapper.waiting_for_transfer_complete = fails
    p.write()
    p.work()
    assert words(p.seen())[1:] == ["p-0 write posted 3", "p-0 write failed 3 1/2 transfers failed"]


@pytest.mark.parametrize("engines", [WRITE], indirect=True)
def test_a_write_for_which_no_blocks_are_named_in_time_is_given_up(engines: tuple[Engine, Engine]) -> None:
    p, _ = engines
    p.worker.transfer_id_to_request_id[TRANSFER] = "p-0"
    p.write()
    p.work()
    assert p.seen() == []
    for task in p.worker._writer._deferred_tasks:
        task.enqueue_time -= 61
    p.work()
    assert words(p.seen()) == ["p-0 write failed no blocks were named within 60 s"]


@pytest.mark.parametrize("engines", [WRITE], indirect=True)
def test_a_message_that_the_worker_cannot_handle_is_recorded(engines: tuple[Engine, Engine]) -> None:
    """One that names no blocks, as vLLM's scheduler's side writes it if nothing is to be loaded."""
    p, _ = engines
    with pytest.raises(moriio_engine.MoRIIOError):
        named_to(p, [])
    assert words(p.seen()) == ["unknown received"]


def test_what_no_worker_reports_in_time_is_given_up() -> None:
    scheduler, probe = a_scheduler(is_producer=True)
    connector = SimpleNamespace(connector_scheduler=scheduler, connector_worker=None)
    scheduler._deferred_send_deadlines |= {"late": (0.0, "tx-1"), "sent": (0.0, "tx-2"), "kept": (1e18, "tx-3")}
    output = SimpleNamespace(finished_sending={"sent"})
    scheduler.update_connector_output(output)
    assert output.finished_sending == {"late", "sent"}
    (freed,) = probe.reported(connector, output)
    assert (freed.kind, freed.request_id, named(freed)["lease_expired"]) == (Kind.FREE, "late", True)


@pytest.mark.parametrize("engines", [WRITE], indirect=True)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_that_message_ends_the_thread_which_takes_messages(engines: tuple[Engine, Engine]) -> None:
    """vLLM 0.32's own listener, over ZeroMQ: no later message arrives, and no listener is started again."""
    p, _ = engines
    wrapper = p.worker.moriio_wrapper
    wrapper.notify_port = free_port()
    with p.in_role():
        wrapper.async_wait_reqid()
        scheduler, _ = a_scheduler(is_producer=False)
        to_p = {"req_id": "d-0", "transfer_id": TRANSFER, "host": "127.0.0.1", "port": wrapper.notify_port}
        scheduler.send_notify_block(**to_p, block_notify_list=[])
        listener = wrapper.notify_thread
        listener.join(SLOW_S)
        wrapper.async_wait_reqid()
    assert (listener.is_alive(), wrapper.notify_thread) == (False, listener)
    assert words(p.seen()) == ["unknown received"]
    for connection in scheduler.paths.values():
        connection.close(linger=0)
