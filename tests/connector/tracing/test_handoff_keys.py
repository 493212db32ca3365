"""By which keys both engines know a hand-off, in the parameters of each connector that vLLM 0.32 and LMCache have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvtrail.connector.tracing import handoffs
from kvtrail.tracer.events.events import FIELDS, Handoff
from kvtrail.tracer.events.semconv import Kind

PROMPT = list(range(3, 643))
A_RECORDER: dict[str, Any] = {
    "engine": "d", "recorder": "d", "sequence": 0, "connector": "NixlConnector", "role": "scheduler", "rank": 0,
    "start_ns": 0, "end_ns": 0,
}  # fmt: skip
ROUTED = {"transfer_id": "xfer-1"}
TIER = {"kv_request_id": "router-1"}
ADDRESS = {"remote_host": "10.0.0.1", "remote_port": 5710}
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any], list[str]]] = {
    "NixlConnector": (
        {"do_remote_decode": True, "remote_engine_id": None},
        {"do_remote_prefill": True, "remote_engine_id": "p", "remote_request_id": "r-1", "remote_block_ids": [[1, 2]]},
        {"do_remote_prefill": True, "remote_engine_id": "p", "remote_request_id": "r-1", "remote_block_ids": [[1, 2]]},
        ["remote_request_id:p/r-1"],
    ),
    "MooncakeConnector": (
        {"do_remote_decode": True, **ROUTED},
        None,
        {"do_remote_prefill": True, "remote_engine_id": "p", "remote_bootstrap_addr": "http://10.0.0.1:8998", **ROUTED},
        ["transfer_id:xfer-1"],
    ),
    "MoRIIOConnector": (
        {"do_remote_decode": True, **ROUTED},
        {"do_remote_prefill": True, "remote_engine_id": "p", "remote_block_ids": [[1, 2]], **ROUTED},
        {"do_remote_prefill": True, "remote_engine_id": "p", "remote_block_ids": [[1, 2]], **ROUTED},
        ["transfer_id:xfer-1"],
    ),
    "the P2P tier": ({"remote_decoder": TIER}, None, {"remote_prefiller": TIER | ADDRESS}, ["kv_request_id:router-1"]),
}
"""What the engine that prefills is asked for and returns, what the one that decodes is asked for, and the keys."""
KEPT = {"NixlConnector", "MooncakeConnector", "MoRIIOConnector"}
"""Those that keep the blocks themselves; the P2P tier has a copy in host memory."""


def a_request(parameters: Any, prompt: list[int] | None = PROMPT) -> Any:
    return SimpleNamespace(kv_transfer_params=parameters, prompt_token_ids=prompt, num_prompt_tokens=len(PROMPT))


def named(values: handoffs.Values | None) -> dict[str, Any]:
    assert values is not None
    return dict(zip((each.field for each in FIELDS[Kind.HANDOFF]), values, strict=True))


def gives(parameters: Any, returned: Any = None, **options: Any) -> handoffs.Values | None:
    options = {"is_kept": True, "computed": len(PROMPT), "with_blocks": False} | options
    return handoffs.given(a_request(parameters), returned, str, **options)


def test_vllm_s_stand_in_for_a_rejected_request_declines_what_is_handed_over() -> None:
    """As `AsyncLLM.notify_kv_transfer_request_rejected` makes it, a real request of vLLM's."""
    pytest.importorskip("vllm")
    from vllm import SamplingParams
    from vllm.v1.request import Request

    parameters = PAIRS["NixlConnector"][2]
    sampling = SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": parameters})
    sides = []
    for rejected in (True, False):
        request = Request("stand-in", [0], sampling, None, abort_immediately=rejected)
        event = Handoff(**A_RECORDER, **named(handoffs.taken(request, str, with_blocks=False)))
        sides.append((event.handoff_side, event.declines, event.takes))
    assert sides == [("declines", True, False), ("takes", True, False)], "by its prompt where vLLM does not say so"
    ordinary = named(takes(parameters))
    assert Handoff(**A_RECORDER, **ordinary).takes


def takes(parameters: Any) -> handoffs.Values | None:
    return handoffs.taken(a_request(parameters), str, with_blocks=False)


@pytest.mark.parametrize("name", PAIRS)
def test_both_sides_have_the_same_keys_and_the_same_digest(name: str) -> None:
    asked, returned, passed_on, keys = PAIRS[name]
    giver, taker = named(gives(asked, returned, is_kept=name in KEPT)), named(takes(passed_on))
    assert (giver["handoff_side"], taker["handoff_side"]) == ("gives", "takes")
    assert list(giver["handoff_keys"]) == list(taker["handoff_keys"]) == keys
    assert giver["digest"] == taker["digest"] is not None
    assert giver["handoff_tokens"] == len(PROMPT)


@pytest.mark.parametrize("name", sorted(KEPT))
def test_what_is_not_kept_is_not_handed_over(name: str) -> None:
    asked, returned, *_ = PAIRS[name]
    assert gives(asked, returned, is_kept=False) is None


@pytest.mark.parametrize("parameters", [{"remote_decoder": TIER}, {"disagg_spec": {"req_id": "1"}}])
def test_what_is_sent_while_it_is_computed_is_handed_over_once_the_whole_prompt_is(parameters: dict[str, Any]) -> None:
    assert gives(parameters, is_kept=False) is not None
    assert gives(parameters, is_kept=False, computed=len(PROMPT) - 1) is None


def test_a_tier_has_the_key_of_its_own_side_alone() -> None:
    """An engine in the middle of a chain has both."""
    both = {"remote_prefiller": {"kv_request_id": "before"} | ADDRESS, "remote_decoder": {"kv_request_id": "after"}}
    assert named(takes(both))["handoff_keys"] == ("kv_request_id:before",)
    assert named(gives(both, is_kept=False))["handoff_keys"] == ("kv_request_id:after",)


def test_a_lookup_in_another_engines_store_is_no_hand_off() -> None:
    """`remote_kv_source`: no request of the other engine is meant, and any number may look."""
    assert takes({"remote_kv_source": TIER | ADDRESS}) is None


def test_lmcache_names_no_hand_off() -> None:
    """`req_id` is what its router counts from 1 on after each start: a key made of it would join strangers."""
    spec = {"req_id": "1", "receiver_host": "10.0.0.2", "receiver_init_port": [8300], "receiver_alloc_port": [8400]}
    giver = named(gives({"ret_first_tok": True, "disagg_spec": spec}, {"first_tok": 7}, is_kept=False))
    assert giver["handoff_keys"] == ()
    assert giver["digest"] is not None
    assert takes({"disagg_spec": spec}) is None


@pytest.mark.parametrize(
    "parameters",
    [None, {}, [], {"remote_decoder": None}, {"remote_decoder": "x"}, {"disagg_spec": 7}, {"remote_prefiller": []}],
)
def test_odd_parameters_are_no_hand_off(parameters: Any) -> None:
    assert gives(parameters, is_kept=False) is None
    assert takes(parameters) is None
