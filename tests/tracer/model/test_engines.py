"""The name by which people know an engine: one function decides it, and no two engines have the same."""

from __future__ import annotations

import pytest

from kvtrail.tracer.events import semconv
from kvtrail.tracer.model import engines

ONE = "3f2a9c1b-5d0e-4c58-9a47-0f1b2c3d4e5f"
OTHER = "77b0c2d4-0000-4c58-9a47-0f1b2c3d4e5f"
POD = {"k8s.pod.name": "llama-0"}
INSTANCE = {"service.instance.id": "blue"}
MADE_UP = {"service.instance.id": "0b0e7a52-1111-4c58-9a47-0f1b2c3d4e5f"}
PLACE = {"service.name": "vllm", "host.name": "gpu-7"}


@pytest.mark.parametrize(
    ("engine", "resource", "name"),
    [
        ("prefill-1", POD | INSTANCE | PLACE, "prefill-1"),
        ("prefill-1_dp0", POD, "prefill-1_dp0"),
        (ONE, POD | INSTANCE | PLACE, "llama-0"),
        (ONE, INSTANCE | PLACE, "blue"),
        (ONE, MADE_UP | PLACE, "vllm on gpu-7 (3f2a9c1b)"),
        (ONE, {"host.name": "gpu-7"}, "gpu-7 (3f2a9c1b)"),
        (ONE, {"service.name": "vllm"}, "3f2a9c1b"),
        (ONE, {}, "3f2a9c1b"),
        (f"{ONE}_dp3", POD, "llama-0 dp3"),
        (ONE.replace("-", "").upper(), {}, "3F2A9C1B"),
    ],
)
def test_what_a_person_chose_comes_first_and_the_uuid_last(engine: str, resource: dict[str, str], name: str) -> None:
    assert engines.shown_name(engine, engines.described(resource)) == name


@pytest.mark.parametrize(
    ("resource", "model"),
    [
        ({semconv.MODEL.key: "/models/llama", semconv.SERVED_MODEL.key: "llama"}, "llama"),
        ({semconv.MODEL.key: "/models/llama"}, "/models/llama"),
        ({}, ""),
    ],
)
def test_a_model_is_called_as_it_is_served(resource: dict[str, str], model: str) -> None:
    assert engines.described(resource)["model"] == model


def test_engines_of_one_name_are_distinguished_by_their_ids() -> None:
    same_beginning = f"{ONE[:-1]}0"
    resources = {ONE: POD, OTHER: POD, f"{ONE}_dp0": PLACE, f"{ONE}_dp1": PLACE, "llama-1": {}}
    known = engines.descriptions({semconv.ENGINE_ID.key: e, **each} for e, each in resources.items())
    assert list(engines.names(known).values()) == [
        "llama-0 (3f2a9c1b)", "llama-0 (77b0c2d4)", "vllm on gpu-7 (3f2a9c1b) dp0",
        "vllm on gpu-7 (3f2a9c1b) dp1", "llama-1",
    ]  # fmt: skip
    known = engines.descriptions({semconv.ENGINE_ID.key: e, **POD} for e in (ONE, same_beginning))
    assert list(engines.names(known).values()) == [f"llama-0 ({ONE})", f"llama-0 ({same_beginning})"]


def test_a_later_recorder_replaces_what_an_earlier_one_said_and_keeps_the_rest() -> None:
    said = ({semconv.ENGINE_ID.key: ONE, **each} for each in (PLACE, {"host.name": "gpu-8"}, {}))
    assert engines.names(engines.descriptions(said)) == {ONE: "vllm on gpu-8 (3f2a9c1b)"}
    assert engines.descriptions([PLACE, {semconv.ENGINE_ID.key: 7}]) == {}


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ('{"cpu_bytes_to_use": 8589934592, "chunk_size": 256}', 8589934592),
        ('{"chunk_size": 256}', None),
        ('{"cpu_bytes_to_use": true}', None),
        ('{"cpu_bytes_to_use": 1e300}', None),
        ("[1]", None),
        ("no JSON", None),
        ("", None),
    ],
)
def test_how_much_memory_a_connector_may_hold_is_in_its_settings(settings: str, limit: int | None) -> None:
    assert engines.memory_limit({semconv.CONNECTOR_SETTINGS.key: settings}) == limit
