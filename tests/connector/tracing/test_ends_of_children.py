"""A request's end under a traced MultiConnector is recorded once, with the answer of all of its children."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the vLLM side needs vLLM")

import faults  # noqa: F401  # adds those of the tests
from bare_scheduler import scheduler
from history import judge, rules_found
from msgspec import structs
from recording import recording

from kvtrail.connector.known import capabilities_declared
from kvtrail.connector.offload import UntracedOffloadConnector
from kvtrail.connector.registration import resolve
from kvtrail.connector.simulate.bare_scheduler import HANDED_ON
from kvtrail.tracer.events.events import Event, RequestEnd
from kvtrail.tracer.history.history import load

REFUSES = "Faulty:refused-handoff:OffloadConnector"
STORES = "OffloadingConnector"


def played(folder: Path, children: Sequence[str], parent: str, *, aborted: bool = False) -> Sequence[Event]:
    """A request that is to be handed on, with these children; what was recorded."""
    given = {"kv_role": "kv_both", "kv_connector_module_path": "kvtrail.connector"}
    extra = {"chunk_size": 64, "cpu_bytes_to_use": 50_000_000}
    own = [
        {"kv_connector": name, **(given if ":" in name else {"kv_role": "kv_both"}), "kv_connector_extra_config": extra}
        for name in children
    ]
    with recording(folder / "trace.jsonl"):
        bare = scheduler(folder, parent, {"connectors": own}, disable_hybrid_kv_cache_manager=True)
        bare.add("r-0", list(range(3, 303)), 40 if aborted else 1, transfer=HANDED_ON)
        if aborted:
            for _ in range(10):
                bare.step()
            bare.abort("r-0")
        bare.run()
        bare.close()
    declared = capabilities_declared(resolve(REFUSES))  # by whichever child comes first, of a connector that is known
    return [structs.replace(each, capabilities=declared) for each in load([folder / "trace.jsonl"]).events]


def end_of(events: Sequence[Event]) -> RequestEnd:
    (end,) = [each for each in events if isinstance(each, RequestEnd)]
    return end


@pytest.mark.parametrize("children", [(REFUSES, f"Traced{STORES}"), (f"Traced{STORES}", REFUSES)])
def test_a_child_that_refuses_a_hand_off_is_found_whichever_child_comes_first(
    tmp_path: Path, children: tuple[str, ...]
) -> None:
    events = played(tmp_path, children, "TracedMultiConnector")
    assert (end_of(events).connector, end_of(events).free_delayed) == ("OffloadConnector", False)
    assert rules_found(judge(events)) == ["refused-handoff"]


@pytest.mark.parametrize("children", [(REFUSES, f"Traced{STORES}"), (f"Traced{STORES}", REFUSES)])
def test_it_is_not_found_where_it_is_not_known(tmp_path: Path, children: tuple[str, ...]) -> None:
    """The request was aborted, or the MultiConnector is not traced."""
    assert not rules_found(judge(played(tmp_path / "aborted", children, "TracedMultiConnector", aborted=True)))
    assert not rules_found(judge(played(tmp_path / "alone", children, "MultiConnector")))


@pytest.mark.parametrize("keeps", [0, 1])
def test_whichever_child_keeps_the_blocks_keeps_them(
    tmp_path: Path, keeps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

    def keep(self: Any, *arguments: Any) -> tuple[bool, None]:
        return True, None

    for call in ("request_finished", "request_finished_all_groups"):
        monkeypatch.setattr((UntracedOffloadConnector, OffloadingConnector)[keeps], call, keep)
    events = played(tmp_path, (REFUSES, f"Traced{STORES}"), "TracedMultiConnector")
    assert end_of(events).free_delayed
    assert not rules_found(judge(events))
