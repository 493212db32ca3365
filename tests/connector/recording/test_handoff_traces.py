"""The requests of a hand-off are in one trace on both engines: the caller's, or one that both derive from its name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import DEFAULT_ON

from kvtrail.connector.recording.contexts import Contexts

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def trace(engine: str, id_: str, params: Any, *, headers: dict[str, str] | None = None, launch: str = "") -> str:
    """The trace of a request of an engine."""
    request = SimpleNamespace(request_id=id_, num_preemptions=0, trace_headers=headers, kv_transfer_params=params)
    return Contexts(engine, DEFAULT_ON, launch=launch).of(request).root[:16].hex()


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (
            {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None},
            {"do_remote_prefill": True, "remote_engine_id": "p", "remote_request_id": "r-0123abcd"},
        ),
        ({"do_remote_decode": True, "transfer_id": "t"}, {"do_remote_prefill": True, "transfer_id": "t"}),
        ({"do_remote_decode": True, "kv_request_id": "k"}, {"do_remote_prefill": True, "kv_request_id": "k"}),
    ],
)
def test_both_engines_derive_one_trace_from_what_they_call_the_hand_off(given: Any, taken: Any) -> None:
    traces = trace("p", "r-0123abcd", given, launch="one"), trace("d", "r-89abcdef", taken, launch="two")
    assert traces[0] == traces[1]
    assert traces[0] != trace("p", "other-0123abcd", {"do_remote_decode": True})


def test_a_callers_trace_is_kept_on_both_engines() -> None:
    given, taken = (
        {"do_remote_decode": True},
        {"do_remote_prefill": True, "remote_request_id": "r", "remote_engine_id": "p"},
    )
    for engine, id_, params in (("p", "r", given), ("d", "r-2", taken)):
        assert trace(engine, id_, params, headers={"traceparent": CALLER}) == CALLER.split("-")[1]


@pytest.mark.parametrize("params", [None, {}, {"do_remote_prefill": False}, "odd", {"do_remote_prefill": True}])
def test_a_request_that_is_not_handed_over_has_a_trace_of_its_own(params: Any) -> None:
    assert trace("p", "r", params, launch="one") != trace("p", "r", params, launch="two")


def test_workers_in_other_processes_are_passed_the_trace() -> None:
    request = SimpleNamespace(
        request_id="r", num_preemptions=0, trace_headers=None, kv_transfer_params={"do_remote_decode": True}
    )
    context = Contexts("p", DEFAULT_ON).of(request)
    assert context.has_caller
    worker = Contexts("p", DEFAULT_ON)
    worker.adopt("r", context.root, context.sampled)
    assert worker.named("r").root == context.root
