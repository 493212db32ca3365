"""How long connectors wait for another engine, as recorders declare it, and as vLLM has it by default."""

from __future__ import annotations

import pytest

from kvtrail.tracer.events.patience import Patience, declaration, of_connector


def test_what_is_declared_comes_back() -> None:
    declared = declaration({"MyConnector": Patience(90.0, 3600.0), "Other": Patience()})
    assert of_connector("MyConnector", declared) == Patience(90.0, 3600.0)
    assert of_connector("Other", declared) == Patience()


def test_where_nothing_is_declared_it_is_vllms_default() -> None:
    assert of_connector("MooncakeConnector", None) == of_connector("MooncakeConnector", "{}") == Patience(480.0, 480.0)
    assert of_connector("NixlConnector", None).load_s is None
    assert of_connector("Unknown", None) == Patience()


@pytest.mark.parametrize(
    "declared", ["", "[]", "7", '{"MyConnector": 3}', '{"MyConnector": {"load_s": "x"}}', "[" * 100_000]
)
def test_damage_declares_nothing(declared: str) -> None:
    assert of_connector("MyConnector", declared) == Patience()
