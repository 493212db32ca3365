"""Bytes on real engines that load between steps, speculate, or have two ranks: each in processes of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import byte_engines
import pytest
from byte_engines import Ran, offload, two_rounds
from processes import Tracer, serve, until

from kvtrail.tracer.events.semconv import Kind

DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
NUMBA = {"NUMBA_DISABLE_JIT": "1", "NUMBA_NUM_THREADS": "1"}
"""For vLLM's search for n-grams: numba compiles it for longer than it runs, and gives OpenMP, and so torch, a thread for each
core; these spin while they wait for one another."""
ASYNC = "Traced:other_offload:AsyncOffloadConnector"
HASTY = "Traced:other_offload:HastyOffloadConnector"
WRONG = "Faulty:blocks-exchanged:OffloadConnector"
WRONG_ASYNC = "Faulty:blocks-exchanged:other_offload:AsyncOffloadConnector"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """An engine without a connector."""
    return byte_engines.without_connector(tmp_path_factory.mktemp("plain"))


RIGHT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "speculation": (offload(), {"speculative_config": DRAFTS, "environment": NUMBA}),
    "asynchronous loads": (offload(ASYNC), {}),
    "asynchronous loads and scheduling": (offload(ASYNC), {"async_scheduling": True}),
}


LONG = ("asynchronous loads",)
"""With asynchronous scheduling they are no easier."""


@pytest.mark.parametrize("run", [pytest.param(r, marks=pytest.mark.long) if r in LONG else r for r in RIGHT])
def test_a_correct_connector_has_nothing_wrong(tmp_path: Path, plain: Ran, run: str) -> None:
    connector, overrides = RIGHT[run]
    ran = two_rounds(tmp_path, connector, **overrides)
    assert ran.unlike(plain) == set()
    looks = ran.looks()
    assert min(looks[look] for look in ("computed", "loaded", "held")) > 5, looks
    assert (looks["wrong"], looks["unknown"]) == (0, 0)
    assert ran.findings() == []


def test_wrong_bytes_of_asynchronous_loads_are_found(tmp_path: Path, plain: Ran) -> None:
    ran = two_rounds(tmp_path, offload(WRONG_ASYNC))
    findings = ran.findings()
    assert ran.unlike(plain) > set()
    assert ran.unlike(plain) <= {finding.external for finding in findings}
    assert {finding.rule for finding in findings} == {"byte-drift"}


def test_a_load_that_is_reported_before_it_is_there_is_early(tmp_path: Path) -> None:
    findings = two_rounds(tmp_path, offload(HASTY)).findings()
    assert {finding.rule for finding in findings} == {"byte-drift"}


def test_wrong_bytes_of_asynchronous_loads_are_healed(tmp_path: Path, plain: Ran) -> None:
    """And are not loaded again: vLLM asks again, and the same bytes would come for ever."""
    ran = two_rounds(tmp_path, offload(WRONG_ASYNC, guard="heal"))
    findings = ran.findings()
    assert ran.unlike(plain) == set()
    assert {finding.rule for finding in findings} == {"byte-drift"}
    assert all(finding.healed == finding.count for finding in findings)


@pytest.fixture
def tracer(tmp_path: Path) -> Iterator[Tracer]:
    tracer = serve(tmp_path)
    yield tracer
    tracer.end()


@pytest.mark.costly("the ranks wait for each other in each step, and keep a processor busy while they do")
@pytest.mark.parametrize(
    ("name", "rules"), [pytest.param("OffloadConnector", set(), marks=pytest.mark.long), (WRONG, {"byte-drift"})]
)
def test_each_of_two_ranks_looks_at_its_own_bytes(
    tmp_path: Path, plain: Ran, tracer: Tracer, name: str, rules: set[str]
) -> None:
    """A correct connector, and one that puts blocks into each other's places."""
    ran = byte_engines.two_ranks(tmp_path / "engine", {**offload(name), "engine_id": "engine"}, tracer.grpc_port)
    others = ran.unlike(plain)
    assert bool(others) == bool(rules)
    until(lambda: others <= {finding["external"] for finding in tracer.get("/api/findings")}, why=tracer.log.read_text)
    assert {finding["rule"] for finding in tracer.get("/api/findings")} == rules
    looked, wrong = ranks(tracer)
    assert looked == {0, 1}
    assert wrong == (looked if rules else set())


def ranks(tracer: Tracer) -> tuple[set[int], set[int]]:
    """Those that have looked at blocks of requests, and those that have found wrong ones."""
    looked, wrong = set(), set()
    for request in tracer.get("/api/requests"):
        for step in tracer.get(f"/api/requests/{request['request']}")["steps"]:
            if step["name"] == Kind.BLOCK_CHECK.value:
                looked.add(step["rank"])
                if step["numbers"].get("check_wrong_kinds"):
                    wrong.add(step["rank"])
    return looked, wrong
