"""Nothing of what a request says leaves the engine: no token ids, not even those in a connector's exceptions."""

from __future__ import annotations

import pprint
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bare_scheduler import scheduler
from memory import MemoryTransport, a_recorder, a_request
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from processes import SLOW_S

from kvtrail.connector.recording import request_names
from kvtrail.connector.recording.request_names import naming
from kvtrail.connector.tracing.scheduler_side import SchedulerInstrumentation
from kvtrail.tracer.events.events import Event

PROMPT = [7919 * number % 30_011 + 30_000 for number in range(300)]
"""Numbers of five digits: none of them is a count, a block or a length."""
FORMS: dict[str, Callable[[Sequence[int]], str]] = {
    "a list": str,
    "a tuple": lambda ids: str(tuple(ids)),
    "numpy": lambda ids: repr(np.array(ids)),
    "numpy's numbers": lambda ids: repr([np.int64(each) for each in ids]),
    "torch": lambda ids: repr(torch.tensor(ids)),
    "a tensor of rows": lambda ids: str(torch.tensor(ids).reshape(20, -1)),
    "lines": lambda ids: "\n".join(map(str, ids)),
    "pretty": lambda ids: pprint.pformat({"token_ids": list(ids)}),
    "numbered": lambda ids: str(dict(enumerate(ids))),
    "objects": lambda ids: ", ".join(f"Token(id={each})" for each in ids),
    "arrows": lambda ids: " -> ".join(map(str, ids)),
    "tabs": lambda ids: "\t".join(map(str, ids)),
    "json": lambda ids: '{"ids":[' + ",".join(map(str, ids)) + "]}",
    "in a long text": lambda ids: "x" * 1900 + f" request: prompt_token_ids={list(ids)}, sampling: none",
}


def reported(text: str) -> set[int]:
    """The prompt's tokens that a text shows next to others of them."""
    found = [int(number) for number in re.findall(r"\d{5}", text)]
    return {a for a, b in pairwise(found) if a in PROMPT and b in PROMPT}


@pytest.mark.parametrize("form", FORMS)
def test_exceptions_contain_no_token_ids(form: str) -> None:
    said = FORMS[form](PROMPT)
    assert len(reported(said)) > 100 or form == "in a long text", "else this shows nothing"
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    instrumentation, request = SchedulerInstrumentation(recorder), a_request(num_tokens=300)
    instrumentation.on_lookup_error(request, 0, 1, ValueError(f"cannot store {said}"))
    instrumentation.on_alloc(None, request, None, 0, 1, KeyError(said))
    instrumentation.on_call_error("build_connector_meta", 1, AssertionError(said, 5), request)
    recorder.close(SLOW_S)
    sent = "".join(str(ExportTraceServiceRequest.FromString(each)) for each in transport.payloads)
    assert "ValueError: cannot store" in sent
    assert not reported(sent)


def test_no_span_of_a_run_has_token_ids(tmp_path: Path, recorded: Callable[[], list[Event]]) -> None:
    """At level `detailed`, with hashes, keys and block tables."""
    extra: dict[str, Any] = {"cpu_bytes_to_use": 2_000_000, "chunk_size": 64, "kvtrail": {"level": "detailed"}}
    bare = scheduler(tmp_path, "OffloadConnector", extra)
    for number in range(4):
        bare.add(f"r-{number}", [token % 500 + 3 for token in PROMPT], 8)
        bare.run()
    bare.close()
    ids = ", ".join(str(token % 500 + 3) for token in PROMPT[:3])
    events = recorded()
    assert len(events) > 50
    assert not [event for event in events if ids in str(event)]


def test_with_a_key_no_id_leaves_the_engine(
    tmp_path: Path, recorded: Callable[[], list[Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in spans of the scheduler, which name several requests, nor in trace ids or heartbeats."""
    monkeypatch.setenv(request_names.VARIABLE, "a secret")
    extra: dict[str, Any] = {"cpu_bytes_to_use": 2_000_000, "chunk_size": 64, "kvtrail": {"level": "detailed"}}
    bare = scheduler(tmp_path, "OffloadConnector", extra)
    names = ["anna@example.org-0123abcd", "bert@example.org"]
    for name in names:
        bare.add(name, PROMPT[:200], 8)
    bare.run()
    bare.close()
    events = recorded()
    assert not [event for event in events if "example.org" in str(event)]
    named = naming({request_names.VARIABLE: "a secret"})
    assert {event.request for event in events if event.request} == set(map(named, names))
    others = naming({request_names.VARIABLE: "another secret"})
    assert not {*map(named, names)} & {*map(others, names)}
    assert named(names[0]).startswith(named("anna@example.org") + "-"), "found by the hash of the caller's id"


def test_nor_in_what_its_calls_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(request_names.VARIABLE, "a secret")
    transport = MemoryTransport()
    recorder = a_recorder(transport)
    instrumentation, request = SchedulerInstrumentation(recorder), a_request(num_tokens=300)
    request.request_id = "anna@example.org-0123abcd"
    instrumentation.on_lookup_error(request, 0, 1, KeyError(request.request_id))
    instrumentation.on_alloc(None, request, None, 0, 1, ValueError("nothing is known of anna@example.org"))
    assert "anna" not in str(recorder.contexts.events()), "which heartbeats report"
    recorder.close(SLOW_S)
    sent = "".join(str(ExportTraceServiceRequest.FromString(each)) for each in transport.payloads)
    assert "KeyError" in sent
    assert "nothing is known of" in sent
    assert "anna" not in sent
