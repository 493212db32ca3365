"""Every connector that vLLM registers, traced: the traced class answers as the plain one does.

Nothing here names a method or a connector that could be missed: the connectors come from vLLM's registry, the methods from
`KVConnectorBase_V1` (and `SupportsHMA`) by inspection. If the third-party package of a class is not installed, that class is
skipped, and the skip names it.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pytest
from memory import MemoryTransport
from naming import naming

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

import vllm.plugins
from prometheus_client import Counter, Gauge, Histogram
from vllm import SamplingParams
from vllm.config import CacheConfig, KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
    supports_hma,
)
from vllm.utils.func_utils import supports_kw
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from kvtrail import connector
from kvtrail.connector import faults, registration
from kvtrail.connector.known.probe import Probe, probe_for
from kvtrail.connector.recording.exceptions import without_place
from kvtrail.connector.recording.exporter import InProcessExporter
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.connector.tracing.traced import BINDING, WATCHED, Tracing, TracingHMA, traced
from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import Failure
from kvtrail.tracer.ingest import decode, protobuf

registration.register()
OURS = "UntracedOffloadConnector"
PLAIN = sorted(
    n for n in KVConnectorFactory._registry if not n.startswith(registration.TRACED) and n != "OffloadConnector"
)
"""The untraced connectors: vLLM's own, and ours, by their names in vLLM's registry."""

INTERFACE: dict[str, Any] = {
    name: attribute
    for owner in (SupportsHMA, KVConnectorBase_V1)
    for name, attribute in inspect.getmembers_static(owner)
    if not name.startswith("_")
}
"""Everything public that vLLM may ask of a connector, as it is declared in vLLM's own base classes."""

MIXED_IN = {name for mixin in (Tracing, TracingHMA) for name in vars(mixin) if not name.startswith("_")}
BOUND_BY = next((name for name in BINDING if name in INTERFACE), BINDING[-1])
RECORDED = ("on_new_request", "build_connector_meta", "reset_cache", BOUND_BY)
OVERRIDDEN = sorted({*MIXED_IN, *WATCHED, *RECORDED} & set(INTERFACE))
CLASS_METHODS = sorted(n for n, a in INTERFACE.items() if isinstance(a, classmethod | staticmethod))
PROPERTIES = sorted(n for n, a in INTERFACE.items() if isinstance(a, property))
PER_LAYER = ("wait_for_layer_load", "save_kv_layer")


# The connectors.


@cache
def plain_or_error(name: str) -> type[KVConnectorBase_V1] | Exception:
    try:
        return KVConnectorFactory.get_connector_class_by_name(name)
    except Exception as error:
        return error


HERE = [name for name in PLAIN if isinstance(plain_or_error(name), type)]
"""The connectors that can be imported here; `test_can_be_imported` reports the others."""


def copying(plain: Any) -> set[str]:
    """The methods on a worker that tracing overrides because a probe sees what they copy."""
    probe = probe_for(plain)
    return {call for call in (probe.load_call, probe.store_call) if call is not None}


def overridden(plain: type) -> list[str]:
    """The methods of a connector that tracing overrides; only those with HMA have all of them."""
    methods = [*OVERRIDDEN, *sorted(copying(plain) & set(INTERFACE))]
    return [method for method in methods if hasattr(plain, method)]


NOT_RECORDED = ("ExampleConnector", "NixlConnector")
"""Of these `make test` tries tracing that is switched off, which hands on calls in the same way for all of them."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test that asks for a connector by its `name` is for each of them."""
    if "memory" in metafunc.fixturenames:
        marks = {name: () if name in NOT_RECORDED else pytest.mark.long for name in HERE}
        cases = [pytest.param(name, True, id=f"{name}-recorded") for name in HERE]
        cases += [pytest.param(name, False, id=f"{name}-not recorded", marks=marks[name]) for name in HERE]
        metafunc.parametrize(("name", "memory"), cases, indirect=True)
    elif "name" in metafunc.fixturenames and not metafunc.definition.get_closest_marker("parametrize"):
        metafunc.parametrize("name", HERE, indirect=True)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A connector's name in vLLM's registry."""
    return str(request.param)


@pytest.fixture
def plain(name: str) -> type[KVConnectorBase_V1]:
    found = plain_or_error(name)
    assert isinstance(found, type)
    return found


def traced_name(name: str) -> str:
    return "OffloadConnector" if name == OURS else f"Traced{name}"


@pytest.fixture
def cls(name: str) -> type[KVConnectorBase_V1]:
    found: type[KVConnectorBase_V1] = getattr(connector, traced_name(name))
    return found


# What it takes to call them.


def transfer_config(name: str, **more: Any) -> KVTransferConfig:
    return KVTransferConfig(kv_connector=name, kv_role="kv_both", engine_id="engine", **more)


@cache
def vllm_config() -> VllmConfig:
    child = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
    transfer = transfer_config("ExampleConnector", kv_connector_extra_config={"connectors": [child]})
    return VllmConfig(kv_transfer_config=transfer, cache_config=CacheConfig(block_size=32))


class Metric:
    """A fake for the three kinds of Prometheus metrics, and registers nowhere."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def labels(self, *args: Any, **kwargs: Any) -> Metric:
        return self


_numbers = itertools.count()


def request_of_vllm() -> Request:
    """A finished request of vLLM's own class: finished, so that it can serve every call."""
    request = Request(f"request-{next(_numbers)}-0123abcd", [5] * 100, SamplingParams(max_tokens=4), None)
    request.status = RequestStatus.FINISHED_LENGTH_CAPPED
    return request


def scheduler_output() -> SchedulerOutput:
    """A step in which one request is new, one runs, one resumes and one is preempted."""
    output = SchedulerOutput.make_empty()
    new: Any = SimpleNamespace(req_id="new", num_computed_tokens=32, block_ids=([1, 2, 3, 4],))
    output.scheduled_new_reqs = [new]
    cached = output.scheduled_cached_reqs
    cached.req_ids, cached.num_computed_tokens, cached.resumed_req_ids = ["runs", "resumes"], [64, 0], {"resumes"}
    cached.new_block_ids = [None, ([5, 6, 7, 8],)]
    output.num_scheduled_tokens = {"new": 68, "runs": 1, "resumes": 100}
    output.total_num_scheduled_tokens = 169
    output.preempted_req_ids = {"preempted"}
    return output


ARGUMENTS: dict[str, Callable[[], Any]] = {
    "request": request_of_vllm,
    "num_computed_tokens": lambda: 32,
    "num_external_tokens": lambda: 64,
    "blocks": lambda: KVCacheBlocks(([KVCacheBlock(1), KVCacheBlock(2)],)),
    "scheduler_output": scheduler_output,
    "connector_output": lambda: KVConnectorOutput(finished_sending={"sent"}, finished_recving={"received"}),
    "vllm_config": vllm_config,
    "extra_config": lambda: {"connectors": [{"kv_connector": "ExampleConnector"}], "use_layerwise": True},
    "data": dict,
    "metric_types": lambda: dict.fromkeys((Counter, Gauge, Histogram), Metric),
    "labelnames": lambda: ["model_name", "engine"],
    "per_engine_labelvalues": lambda: {0: ["model", "0"]},
}
"""What a call gets, by the name of the parameter; an object of no type where nothing is known of it."""


def arguments(method: str) -> dict[str, Any]:
    """Arguments for a method, by the signature that the interface gives it."""
    parameters = inspect.signature(getattr(owner_of(method), method)).parameters.values()
    named = [p for p in parameters if p.kind is not p.VAR_KEYWORD and p.name != "self"]
    given = {p.name: ARGUMENTS.get(p.name, object)() for p in named}
    return given | ({"an_extra": object()} if any(p.kind is p.VAR_KEYWORD for p in parameters) else {})


def owner_of(method: str) -> type:
    return KVConnectorBase_V1 if hasattr(KVConnectorBase_V1, method) else SupportsHMA


def answers(method: str) -> list[Any]:
    """Answers of the shape that the interface promises; of a method that promises nothing, an object of no type."""
    promised = str(inspect.signature(getattr(owner_of(method), method)).return_annotation)
    if promised.startswith("tuple[int | None, bool]"):
        return [(0, False), (16, True), (None, False), (1_000_000, False)]  # the last breaks the contract
    if promised.startswith("tuple[bool, dict"):
        return [(True, {"host": object()}), (False, None)]
    return [True, False, None] if promised == "bool | None" else [object(), None]


@pytest.fixture
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryTransport | None]:
    """Tracing with a real recorder that sends to this memory, and tracing switched off (None).

    In the end, nothing that was recorded may have been lost or be unreadable.
    """
    monkeypatch.delenv("KVTRAIL_GUARD", raising=False)
    sender = MemoryTransport() if request.param else None
    recorder = None if sender is None else Recorder("engine", {}, InProcessExporter(sender))
    monkeypatch.setattr("kvtrail.connector.tracing.traced.of_process", lambda *_, **__: recorder)
    yield sender
    if sender is not None and recorder is not None:
        recorder.close()
        spans = [s for payload in sender.payloads for s in protobuf.spans(payload)]
        assert recorder.dropped == 0
        assert {s.name for s in spans if decode.from_span(s) is None} <= {semconv.ENGINE_SPAN}


class Stub:
    """The plain class with one method that records its arguments and returns or raises what the test sets."""

    def __init__(self, plain: type, method: str, *answers: Any) -> None:
        self.calls: list[dict[str, Any]] = []
        self.created_with: tuple[Any, ...] = ()
        left = iter(answers)
        signature = inspect.signature(getattr(owner_of(method), method))

        def init(_: Any, *args: Any) -> None:
            self.created_with = args

        def stub(connector: Any, *args: Any, **kwargs: Any) -> Any:
            given = signature.bind(connector, *args, **kwargs).arguments
            del given["self"]
            more = given.pop("kwargs", {})
            self.calls.append({**given, **more})
            answer = next(left)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        own = {"__init__": init, method: stub, "__del__": lambda _: None}  # there is nothing to release
        self.cls = type(plain.__name__, (plain,), own)

    def traced(self) -> Any:
        return traced(self.cls)(vllm_config(), KVConnectorRole.SCHEDULER, None)


def same(these: dict[str, Any], those: dict[str, Any]) -> bool:
    """The same arguments: the very objects."""
    return these.keys() == those.keys() and all(these[key] is those[key] for key in these)


def outcome(call: Callable[[], Any]) -> tuple[type, str, Any]:
    """What a call comes to, comparable: a value by its type and itself, an exception by its type and text."""
    try:
        value = call()
    except Exception as error:
        return type(error), str(error).replace("'Traced", "'"), None  # an AttributeError names the class
    kind: Any = type(value)
    return kind, "", value if kind.__eq__ is not object.__eq__ else None


# The list of connectors.


def is_not_installed(error: ImportError) -> bool:
    """True when a third-party package is not there; an ImportError for any other reason is a failure."""
    package = (error.name or "").partition(".")[0]
    known = ("", "vllm", "kvtrail")
    return package not in known and importlib.util.find_spec(package) is None


@pytest.mark.parametrize("name", PLAIN)
def test_can_be_imported(name: str) -> None:
    """Each connector of the registry is tested below, or it is skipped here because a package of its own is not installed;
    then the traced class says which, as the plain one does."""
    found = plain_or_error(name)
    if isinstance(found, type):
        assert name in HERE
        return
    assert isinstance(found, ImportError), f"{name}: {found!r}"
    assert is_not_installed(found), f"{name}: {found!r}"
    with pytest.raises(ImportError) as caught:
        getattr(connector, traced_name(name))
    assert (caught.value.name, str(caught.value)) == (found.name, str(found))
    pytest.skip(f"{name} cannot be imported here: {found}")


# The class: what vLLM asks before there is an object.


def test_the_traced_class_is_a_subclass_that_can_be_found(name: str, plain: type, cls: type) -> None:
    """A true subclass, the same each time, importable by the name and module that it gives itself."""
    assert issubclass(cls, plain)
    assert cls is not plain
    assert cls is getattr(connector, traced_name(name))
    assert cls.__module__ == "kvtrail.connector"
    assert getattr(connector, cls.__name__) is cls


def test_the_factory_finds_it_by_name(name: str, cls: type) -> None:
    """By the registered name, by module path, and by the class's own name, which MultiConnector files its statistics
    under."""
    assert KVConnectorFactory.get_connector_class(transfer_config(traced_name(name))) is cls
    by_module = transfer_config(traced_name(name), kv_connector_module_path="kvtrail.connector")
    assert KVConnectorFactory.get_connector_class(by_module) is cls
    assert KVConnectorFactory.get_connector_class_by_name(cls.__name__) is cls


def test_vllm_sees_the_same_kind_of_class(plain: type[KVConnectorBase_V1], cls: type[KVConnectorBase_V1]) -> None:
    """HMA support, what is abstract, and the third argument of the constructor, as the factory checks it."""
    assert supports_hma(cls) == supports_hma(plain)
    assert cls.__abstractmethods__ == plain.__abstractmethods__
    assert supports_kw(cls, "kv_cache_config")


def with_a_child_without_hma(name: str, **more: Any) -> KVTransferConfig:
    child = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
    return transfer_config(name, kv_connector_extra_config={"connectors": [child]}, **more)


asks_the_configuration = pytest.mark.skipif(
    not hasattr(KVConnectorFactory, "supports_hma_config"), reason="this vLLM asks the class only"
)


@asks_the_configuration
@pytest.mark.parametrize("name", [n for n in HERE if n != "MultiConnector"])
def test_hma_support_of_the_configuration_is_the_same(name: str) -> None:
    """`supports_hma_config` is what decides whether vLLM switches its hybrid memory allocator off."""
    on_traced = KVConnectorFactory.supports_hma_config(with_a_child_without_hma(traced_name(name)))
    assert on_traced == KVConnectorFactory.supports_hma_config(with_a_child_without_hma(name))


@pytest.mark.parametrize("name", [n for n in HERE if n != OURS])
def test_a_connector_can_be_traced_under_its_own_name(name: str, cls: type) -> None:
    """vLLM asks some things by the configured name (`kv_connector == "MultiConnector"`, `has_connector("NixlConnector")`);
    with the plain name and kv_connector_module_path "kvtrail.connector" it gets the traced class and the same answers."""
    own_name = with_a_child_without_hma(name, kv_connector_module_path="kvtrail.connector")
    assert KVConnectorFactory.get_connector_class(own_name) is cls
    if hasattr(own_name, "has_connector"):
        assert own_name.has_connector(name)


@asks_the_configuration
@pytest.mark.parametrize("name", [n for n in HERE if n != OURS])
def test_so_its_configuration_supports_the_same(name: str) -> None:
    own_name = with_a_child_without_hma(name, kv_connector_module_path="kvtrail.connector")
    plainly = KVConnectorFactory.supports_hma_config(with_a_child_without_hma(name))
    assert KVConnectorFactory.supports_hma_config(own_name) == plainly


def test_everything_else_is_the_plain_classs_own(plain: type, cls: type) -> None:
    """Each attribute of the plain class, private ones included, is the very same object on the traced class, but for the
    methods that tracing overrides, and those of a worker that a probe knows to copy; and tracing adds no name that a
    connector could have. What is called for every layer stays as it is."""
    of_plain = {n: a for n, a in inspect.getmembers_static(plain) if not n.startswith("__") and n != "_abc_impl"}
    of_traced = {n: a for n, a in inspect.getmembers_static(cls) if not n.startswith("__") and n != "_abc_impl"}
    changed = {n for n in of_plain if of_traced[n] is not of_plain[n]}
    assert changed == {n for n in (*OVERRIDDEN, BOUND_BY) if n in of_plain} | copying(plain)
    assert [n for n in of_traced.keys() - of_plain.keys() if not n.startswith("_kvtrail") and n != BOUND_BY] == []
    assert [n for n in of_plain if n.startswith("_kvtrail")] == []


def test_tracing_overrides_plain_methods_of_the_interface_only() -> None:
    """No public name of the mixins is unknown to vLLM; none replaces a classmethod, a property or a per-layer call."""
    assert MIXED_IN - set(INTERFACE) == set()
    assert [n for n in OVERRIDDEN if not inspect.isfunction(INTERFACE[n])] == []
    assert not set(PER_LAYER) & set(OVERRIDDEN)


def test_per_layer_calls_are_the_plain_classs_functions(plain: type, cls: type) -> None:
    """Not a single Python call is added where vLLM calls once per layer."""
    for method in PER_LAYER:
        assert getattr(cls, method) is getattr(plain, method), method
        assert inspect.isfunction(getattr(cls, method)), method


def test_class_methods_answer_the_same(plain: type, cls: type) -> None:
    """The traced class says what the plain class says: layout, graph mode, statistics and metrics."""

    def ask(of: Any, method: str, given: dict[str, Any]) -> Any:
        return outcome(lambda: getattr(of, method)(**given))

    for method in CLASS_METHODS:
        given = arguments(method)
        assert ask(cls, method, given) == ask(plain, method, given), method


def test_properties_answer_the_same(plain: type, cls: type) -> None:
    """Properties, asked of objects with the same state."""

    def ask(of: Any, name_of: str) -> Any:
        asked: Any = of.__new__(of)
        vars(asked).update(_role=KVConnectorRole.WORKER, _kv_transfer_config=vllm_config().kv_transfer_config)
        vars(asked).update(_connectors=[])
        return getattr(asked, name_of)

    for name_of in PROPERTIES:
        of_plain = outcome(partial(ask, plain, name_of))
        assert outcome(partial(ask, cls, name_of)) == of_plain, name_of


def test_each_class_has_a_probe(plain: type) -> None:
    """The probe that the constructor of a traced connector looks up is there."""
    assert isinstance(probe_for(plain), Probe)


# The object: what tracing overrides.


def test_the_constructor_hands_on_its_arguments(plain: type, memory: MemoryTransport | None) -> None:
    """Configuration, role and cache configuration reach the plain class's constructor as they are."""
    stub = Stub(plain, "wait_for_save")
    given = (vllm_config(), KVConnectorRole.WORKER, object())
    traced(stub.cls)(*given)
    assert len(stub.created_with) == 3
    assert all(these is those for these, those in zip(stub.created_with, given, strict=True))


def test_overridden_methods_pass_and_answer_the_same(plain: type, memory: MemoryTransport | None) -> None:
    """Each overridden method calls the plain one exactly once, with the very same arguments, and gives its answer."""
    for method, by_name in itertools.product(overridden(plain), (False, True)):
        with naming(method, "by name" if by_name else "by position"):
            expected = answers(method)
            stub = Stub(plain, method, *expected)
            on = stub.traced()
            for number, answer in enumerate(expected):
                given = arguments(method)
                extra = {key: given[key] for key in given if key == "an_extra"}
                positional = [] if by_name else [given[key] for key in given if key not in extra]
                result = getattr(on, method)(*positional, **(given if by_name else extra))
                assert (type(result), result) == (type(answer), answer)
                assert len(stub.calls) == number + 1
                assert same(stub.calls[number], given)


def test_overridden_methods_raise_the_same(plain: type, memory: MemoryTransport | None) -> None:
    """The very exception of the plain method comes out, with nothing chained to it; and the next call is served."""
    for method, error_class in itertools.product(overridden(plain), (ValueError, KeyboardInterrupt)):
        with naming(method, error_class.__name__):
            error, answer = error_class("the connector's own"), answers(method)[0]
            stub = Stub(plain, method, error, answer)
            on = stub.traced()
            given = arguments(method)
            with pytest.raises(error_class) as caught:
                getattr(on, method)(**given)
            assert caught.value is error
            assert (error.__cause__, error.__context__) == (None, None)
            assert same(stub.calls[0], given)
            assert getattr(on, method)(**given) == answer


def test_calls_during_construction_are_the_plain_classs(plain: type) -> None:
    """A connector may call its own methods in its constructor, and in `__del__` after a constructor that failed: tracing
    has not begun then, and must not be in the way."""
    for method in overridden(plain):
        with naming(method):
            answer = answers(method)[0]
            stub = Stub(plain, method, answer)
            cls = traced(stub.cls)
            unfinished: Any = cls.__new__(cls)  # type: ignore[call-overload]  # not of `type`
            assert getattr(unfinished, method)(**arguments(method)) == answer


def test_the_recorder_hears_of_every_call_about_a_request(plain: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal answers prove something only if the calls are really traced: each of these leaves a span."""
    expected = {
        "on_new_request": "kv.request.start",
        "get_num_new_matched_tokens": "kv.lookup",
        "update_state_after_alloc": "kv.alloc",
        "build_connector_meta": "kv.schedule",
        "update_connector_output": "kv.received",
        "request_finished": "kv.request",
        "reset_cache": "kv.reset",
    }
    sender = MemoryTransport()
    recorder = Recorder("engine", {}, InProcessExporter(sender))
    monkeypatch.setattr("kvtrail.connector.tracing.traced.of_process", lambda *_, **__: recorder)
    for method in expected.keys() & INTERFACE.keys():
        getattr(Stub(plain, method, answers(method)[0]).traced(), method)(**arguments(method))
    recorder.close()
    spans = [s for payload in sender.payloads for s in protobuf.spans(payload)]
    assert set(expected.values()) - {s.name for s in spans} == set()


def test_the_recorder_hears_of_every_exception(plain: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each call that is traced, on the scheduler's side and on a worker: with the call, the message, and the request that
    it is about; but without sequences of numbers, which may be a user's text."""
    sender = MemoryTransport()
    recorder = Recorder("engine", {}, InProcessExporter(sender))
    monkeypatch.setattr("kvtrail.connector.tracing.traced.of_process", lambda *_, **__: recorder)
    own_kind = {"get_num_new_matched_tokens": "kv.lookup", "update_state_after_alloc": "kv.alloc"}
    for method in overridden(plain):
        given = arguments(method)
        error = ValueError("of tokens [15496, 995, 50256]")
        with pytest.raises(ValueError, match="15496") as raised:
            getattr(Stub(plain, method, error).traced(), method)(**given)
        assert raised.value is error
    assert recorder.flush()
    events = [e for p in sender.payloads for s in protobuf.spans(p) if (e := decode.from_span(s)) is not None]
    failed = [event for event in events if event.error is not None]
    assert {without_place(e.error or "") for e in failed} == {"ValueError: of tokens [<3 numbers>]"}
    called = [e.call if isinstance(e, Failure) else next(m for m in own_kind if own_kind[m] == e.kind) for e in failed]
    assert called == overridden(plain)
    about = {call for call, event in zip(called, failed, strict=True) if event.request is not None}
    assert about == {m for m in called if "request" in arguments(m)}
    recorder.close()


@pytest.mark.skipif("get_transfer_results" not in INTERFACE, reason="in this vLLM no traced call calls another")
def test_an_exception_that_passes_two_traced_calls_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a child of a MultiConnector that is traced itself, or where one method calls another."""
    sender = MemoryTransport()
    recorder = Recorder("engine", {}, InProcessExporter(sender))
    monkeypatch.setattr("kvtrail.connector.tracing.traced.of_process", lambda *_, **__: recorder)
    plain = plain_or_error("ExampleConnector")
    on = Stub(plain, "get_finished", ValueError("no")).traced()  # type: ignore[arg-type]  # it is a class
    with pytest.raises(ValueError, match="no"):
        on.get_transfer_results(set())
    recorder.close()
    spans = [s for payload in sender.payloads for s in protobuf.spans(payload)]
    assert [s.attributes["kvtrail.call"] for s in spans if s.name == "kv.failure"] == ["get_finished"]


# The registration.


@pytest.fixture
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """vLLM's registry as it is before any plugin is loaded."""
    loaders = {n: KVConnectorFactory._registry[n] for n in PLAIN if n != OURS}
    monkeypatch.setattr(KVConnectorFactory, "_registry", loaders)
    monkeypatch.setattr(vllm.plugins, "plugins_loaded", False)
    return loaders


def test_vllm_knows_the_names_once_its_plugins_are_loaded(
    fresh_registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installed entry point brings every name; before, vLLM does not know them."""
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    before = set(fresh_registry)
    with pytest.raises(ValueError, match="Unsupported connector type"):
        KVConnectorFactory.get_connector_class(transfer_config("OffloadConnector"))
    vllm.plugins.load_general_plugins()
    assert set(fresh_registry) - before == {"OffloadConnector", OURS, *(f"Traced{n}" for n in before)}
    found = KVConnectorFactory.get_connector_class(transfer_config("OffloadConnector"))
    assert found is connector.OffloadConnector


def test_registration_can_be_repeated(fresh_registry: dict[str, Any]) -> None:
    """vLLM may load a plugin several times in a process: the second time changes nothing."""
    registration.register()
    once = dict(fresh_registry)
    registration.register()
    assert fresh_registry == once


def test_a_class_is_traced_by_module_path(name: str, plain: type, cls: type) -> None:
    """`Traced:<module>:<class>` through vLLM's factory; the same class as by the registered name, but for ours, which
    has a name of its own."""
    config = transfer_config(
        f"Traced:{plain.__module__}:{plain.__qualname__}", kv_connector_module_path="kvtrail.connector"
    )
    found = KVConnectorFactory.get_connector_class(config)
    assert found is (traced(plain) if name == OURS else cls)
    assert issubclass(found, plain)


def test_a_fault_is_injected_below_the_tracing() -> None:
    """`Faulty:<fault>:<connector>` is the connector with the fault, and traced."""
    config = transfer_config("Faulty:stale-lookup:OffloadConnector", kv_connector_module_path="kvtrail.connector")
    found = KVConnectorFactory.get_connector_class(config)
    order = [found.__mro__.index(c) for c in (Tracing, faults.FAULTS["stale-lookup"], plain_or_error(OURS))]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("TracedNobodysConnector", r"vLLM knows no connector 'NobodysConnector'. It knows: .*NixlConnector"),
        ("Traced:no.such.module:Thing", r"cannot trace no.such.module:Thing: No module named 'no'"),
        ("Traced:collections:Thing", r"cannot trace collections:Thing: .*no attribute 'Thing'"),
        ("Faulty:no-such-fault:OffloadConnector", r"no fault 'no-such-fault'; known: .*stale-lookup"),
        ("Faulty:stale-lookup:NobodysConnector", r"vLLM knows no connector 'NobodysConnector'"),
        ("nothing_of_ours", r"module 'kvtrail.connector' has no attribute 'nothing_of_ours'"),
    ],
)
def test_an_unknown_name_is_explained(asked: str, said: str) -> None:
    """The package says what is wrong and what there is; vLLM's factory passes it on as the cause of its own error."""
    with pytest.raises(AttributeError, match=said):
        getattr(connector, asked)
    with pytest.raises(AttributeError, match=r"not found in kvtrail\.connector") as caught:
        KVConnectorFactory.get_connector_class(transfer_config(asked, kv_connector_module_path="kvtrail.connector"))
    assert isinstance(caught.value.__cause__, AttributeError)


def test_what_is_no_connector_is_refused() -> None:
    """A class that is no KVConnectorBase_V1, or no class at all, is a TypeError, by name as by object."""
    config = transfer_config("Traced:collections:OrderedDict", kv_connector_module_path="kvtrail.connector")
    with pytest.raises(TypeError, match=r"OrderedDict.*is no KVConnectorBase_V1 class"):
        KVConnectorFactory.get_connector_class(config)
    for thing in (object(), int, "NixlConnector"):
        with pytest.raises(TypeError, match="is no KVConnectorBase_V1 class"):
            traced(thing)


def test_tracing_twice_is_tracing_once(cls: type) -> None:
    """A traced class is not traced again."""
    assert traced(cls) is cls
