"""What another OpenTelemetry backend is shown: names that it knows, exceptions, and a tree that holds together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bare_scheduler import scheduler
from memory import MemoryTransport, a_recorder, a_request
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from processes import SLOW_S

from kvtrail.connector.recording.exporter import InProcessExporter
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.connector.simulate import tiny_model
from kvtrail.connector.tracing.scheduler_side import SchedulerInstrumentation
from kvtrail.tracer.events.semconv import ENGINE_NS, ENGINE_SPAN, Kind

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> MemoryTransport:
    """What the recorder of this process sends."""
    sent = MemoryTransport()
    made: dict[str, Recorder] = {}

    def of_process(engine_id: str, resource: dict[str, Any], **_: Any) -> Recorder:
        return made.setdefault(engine_id, Recorder(engine_id, resource, InProcessExporter(sent)))

    monkeypatch.setattr("kvtrail.connector.tracing.traced.of_process", of_process)
    return sent


def spans_of(transport: MemoryTransport) -> list[ProtoSpan]:
    requests = map(ExportTraceServiceRequest.FromString, transport.payloads)
    return [
        span for request in requests for each in request.resource_spans for s in each.scope_spans for span in s.spans
    ]


def attributes(holder: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in holder.attributes}


def run(folder: Path, name: str, prompts: Sequence[Sequence[int]], **extra: Any) -> None:
    bare = scheduler(folder, name, {"cpu_bytes_to_use": 50_000_000, **extra})
    for number, prompt in enumerate(prompts):
        bare.add(f"r-{number}-0123abcd", list(prompt), 4)
        bare.run()
    bare.close()


def test_the_root_has_the_names_of_generative_ai(tmp_path: Path, transport: MemoryTransport) -> None:
    run(tmp_path, "TracedOffloadingConnector", [range(3, 303), range(3, 303), range(3, 203)])
    roots = [attributes(span) for span in spans_of(transport) if span.name == Kind.REQUEST]
    assert [root["gen_ai.usage.input_tokens"] for root in roots] == [300, 300, 200]
    assert [root["gen_ai.usage.cache_read.input_tokens"] for root in roots] == [0, 288, 192]
    assert [root["gen_ai.request.id"] for root in roots] == ["r-0", "r-1", "r-2"]
    assert [root["gen_ai.usage.output_tokens"] for root in roots] == [4, 4, 4]
    names = {(root["gen_ai.operation.name"], root["gen_ai.provider.name"]) for root in roots}
    assert names == {("text_completion", "vllm")}
    (model,) = {root["gen_ai.request.model"] for root in roots}
    assert model == tiny_model.OPTIONS["served_model_name"]
    others = [attributes(span) for span in spans_of(transport) if span.name != Kind.REQUEST]
    assert not any(key.startswith("gen_ai.") for each in others for key in each)


def test_a_chat_is_named_as_one(tmp_path: Path, transport: MemoryTransport) -> None:
    bare = scheduler(tmp_path, "TracedOffloadingConnector", {"cpu_bytes_to_use": 50_000_000})
    bare.add("chatcmpl-7-0123abcd", [*range(3, 99)], 2)
    bare.run()
    bare.close()
    (root,) = [attributes(span) for span in spans_of(transport) if span.name == Kind.REQUEST]
    assert root["gen_ai.operation.name"] == "chat"


def test_an_exception_says_where_it_was_raised_outside_kvtrail() -> None:
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    try:
        assert [].copy()
    except AssertionError as error:
        SchedulerInstrumentation(recorder).on_lookup_error(a_request(num_tokens=9), 0, 1, error)
        line = error.__traceback__.tb_lineno  # type: ignore[union-attr]
    recorder.close(SLOW_S)
    (span,) = [each for each in spans_of(transport) if each.name == Kind.LOOKUP]
    name = "test_an_exception_says_where_it_was_raised_outside_kvtrail"
    assert span.status.message.endswith(f"(at {__name__}:{line} in {name})")


def test_an_exception_is_an_event_of_its_span() -> None:
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    SchedulerInstrumentation(recorder).on_lookup_error(a_request(num_tokens=9), 0, 1, ValueError("no: such key"))
    recorder.close(SLOW_S)
    (span,) = [each for each in spans_of(transport) if each.name == Kind.LOOKUP]
    (event,) = span.events
    assert (event.name, event.time_unix_nano) == ("exception", span.end_time_unix_nano)
    assert attributes(event) == {"exception.type": "ValueError", "exception.message": "no: such key"}
    assert span.status.code == span.status.STATUS_CODE_ERROR


def test_every_parent_is_a_span_that_is_sent(tmp_path: Path, transport: MemoryTransport) -> None:
    """Or the caller's: what concerns no request has the engine's span as its parent; there is one a minute."""
    run(tmp_path, "TracedOffloadingConnector", [range(3, 303)] * 3)
    spans = spans_of(transport)
    ids = {span.span_id for span in spans}
    assert len(ids) == len(spans)
    assert {span.parent_span_id for span in spans} <= ids | {b""}
    roots = {span.span_id: span.name for span in spans if not span.parent_span_id}
    assert set(roots.values()) == {Kind.REQUEST, ENGINE_SPAN}
    for span in spans:
        if span.span_id not in roots:
            concerned = "kvtrail.request.id" in attributes(span)
            assert roots[span.parent_span_id] == (Kind.REQUEST if concerned else ENGINE_SPAN)
    (engine, *_) = [span for span in spans if span.name == ENGINE_SPAN]
    assert engine.end_time_unix_nano - engine.start_time_unix_nano == ENGINE_NS


def test_children_of_a_multi_connector_are_children(tmp_path: Path, transport: MemoryTransport) -> None:
    children = [
        {
            "kv_connector": "TracedOffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"cpu_bytes_to_use": size},
        }
        for size in (10_000_000, 20_000_000)
    ]
    extra = {"connectors": children}
    bare = scheduler(tmp_path, "TracedMultiConnector", extra, disable_hybrid_kv_cache_manager=True)
    for number in range(3):
        bare.add(f"r-{number}", list(range(3, 303)), 4)
        bare.run()
    bare.close()
    sent = spans_of(transport)
    spans = {span.span_id: span for span in sent}
    assert len(spans) == len(sent)
    for name in (Kind.LOOKUP, Kind.ALLOC):
        parents = [spans[span.parent_span_id] for span in sent if span.name == name]
        assert Counter(parent.name for parent in parents) == {Kind.REQUEST: 3, name: 6}
        for span in sent:
            if span.name == name and (parent := spans[span.parent_span_id]).name == name:
                assert parent.start_time_unix_nano <= span.start_time_unix_nano
                assert span.end_time_unix_nano <= parent.end_time_unix_nano
                assert (attributes(parent)["kvtrail.connector.name"], parent.trace_id) == (
                    "MultiConnector",
                    span.trace_id,
                )


def test_the_place_in_a_call_ends_with_it() -> None:
    """Even if the call raises; a connector of a connector's connector is inside both."""
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    instrumentation, request = SchedulerInstrumentation(recorder), a_request(num_tokens=9)

    def look_up() -> None:
        instrumentation.on_lookup(None, request, 0, 1, (0, False))

    def fail_within() -> None:
        with instrumentation.placed(parent_id=b"parent-1"):
            with instrumentation.placed(span_id=b"itself-1"):
                look_up()
            raise KeyError

    with pytest.raises(KeyError):
        fail_within()
    look_up()
    recorder.close(SLOW_S)
    first, second = [span for span in spans_of(transport) if span.name == Kind.LOOKUP]
    assert (first.parent_span_id, first.span_id) == (b"parent-1", b"itself-1")
    assert (second.parent_span_id, second.span_id) != (first.parent_span_id, first.span_id)
    assert second.parent_span_id == request_root(recorder)


def request_root(recorder: Recorder) -> bytes:
    (context,) = recorder.contexts.open.values()
    return context.root[16:]


def test_vllms_own_span_is_invited_where_there_is_no_caller() -> None:
    """It is made by the request's headers; vLLM sends it on only where its tracing is on."""
    recorder = a_recorder(MemoryTransport())
    alone, called, first = a_request("r-1"), a_request("r-2", trace_headers={"traceparent": CALLER}), a_request("r-3")
    recorder.contexts.of(first)
    recorder.contexts.invites = True
    for request in (alone, called):
        recorder.contexts.of(request)
    root = recorder.contexts.of(alone).root
    recorder.contexts.open.clear()  # forgotten among too many
    again = recorder.contexts.of(alone)
    recorder.close(SLOW_S)
    assert alone.trace_headers == {"traceparent": f"00-{root[:16].hex()}-{root[16:].hex()}-01"}
    assert (again.root, again.has_caller) == (root, False)
    assert called.trace_headers == {"traceparent": CALLER}
    assert first.trace_headers is None
