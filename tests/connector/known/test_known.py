"""What is known of connectors is found by their classes, and by nothing else."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace

import pytest

from kvtrail.connector import known
from kvtrail.connector.known.fake import Fake
from kvtrail.connector.known.probe import Probe
from kvtrail.tracer.events.capabilities import Capability
from kvtrail.tracer.events.patience import Patience, of_connector
from kvtrail.tracer.rules import pages

FOLDERS = sorted(path.parent for path in Path(known.__file__).parent.glob("*/__init__.py"))
BASES: dict[str, type] = {"probe": Probe, "fake": Fake}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_declares_a_connector_and_its_files_are_its_parts(folder: Path) -> None:
    connector = {each.package: each for each in known._by_class().values()}[f"{known.__name__}.{folder.name}"]
    assert all(known.by_name(name) is connector for name in connector.classes)
    parts = {"__init__", "contents", "recorded", "transfers", *BASES}
    assert {path.stem for path in folder.glob("*.py")} <= parts
    for part, base in BASES.items():
        cls = known.part_of(type(connector.classes[0], (), {}), part)
        assert (cls is not None) == (folder / f"{part}.py").exists()
        assert cls is None or issubclass(cls, base)
    assert callable(connector.part("recorded")) == (folder / "recorded.py").exists()


SHOWN = {
    "chunk_size": "chunk size",
    "lookup": "matched tokens",
    "keys": "claimed keys",
    "held_keys": "keys held",
    "stepped": "plans",
    "forgotten": "evictions",
    "ended": "ends of transfers",
    "loads": "copies",
    "stores": "copies",
    "held_bytes": "bytes held",
    "contents": "contents",
    "reported": "[hand-offs](concepts.md#hand-offs)",
}
"""What a probe shows by each of its methods, as docs/connectors.md calls it."""


def test_the_page_says_what_each_probe_shows() -> None:
    page = (Path(__file__).parents[3] / "docs" / "connectors.md").read_text()
    reported = page.partition("## What the probes show")[2].partition("\n\nThe others")[0]
    rows = []
    for connector in sorted(
        {each.package: each for each in known._by_class().values()}.values(), key=lambda c: c.classes
    ):
        probe = connector.part("probe")
        if probe is not None:
            shown = dict.fromkeys(
                word for name, word in SHOWN.items() if getattr(probe, name) is not getattr(Probe, name)
            )
            rows.append(f"| {', '.join(f'`{name}`' for name in connector.classes)} | {', '.join(shown)} |")
    assert re.findall(r"^\| `.*$", reported, re.MULTILINE) == rows


def test_the_page_says_what_each_capability_promises_and_which_rules_ask_for_it() -> None:
    page = (Path(__file__).parents[3] / "docs" / "connectors.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", page.partition("## Capabilities")[2], flags=re.MULTILINE)
    asking = {
        each: [
            rule
            for rule, page in pages.files().items()
            if f"Capability.{each.name}" in page.with_suffix(".py").read_text()
        ]
        for each in Capability
    }
    assert {name: sorted(re.findall(r"`([\w-]+)`", rules)) for name, rules in rows} == asking
    tracer = Path(__file__).parents[3] / "tracer"
    asking_rooms = (path for room in ("causes", "rules", "savings") for path in (tracer / room).rglob("*.py"))
    sources = "".join(path.read_text() for path in asking_rooms)
    for each in Capability:
        assert f"Capability.{each.name}" in sources, "a capability that is never asked for"


def test_a_subclass_is_known_and_a_stranger_is_not() -> None:
    native = type("OffloadingConnector", (), {})
    derived = type("Mine", (native,), {})
    assert known.by_class(derived) is known.by_name("OffloadingConnector") is not None
    assert known.by_class(type("Stranger", (), {})) is None
    assert json.loads(known.capabilities_declared(derived))["Mine"] == [
        "evicts_any",
        "exclusive_transfers",
        "tells_chunks",
    ]
    own = type("Mine", (native,), {"kvtrail_capabilities": ("hands_on", "of_a_newer_kvtrail")})
    assert json.loads(known.capabilities_declared(own))["Mine"] == [
        "evicts_any",
        "exclusive_transfers",
        "hands_on",
        "tells_chunks",
    ]
    assert "Mine" not in json.loads(known.capabilities_declared(native))


def test_traces_without_a_declaration_show_the_same_capabilities() -> None:
    """Of the connectors that were recorded before there was a declaration; a newer one is in no such trace. Recorders of that
    time did not report all chunks."""
    from kvtrail.tracer.events.capabilities import of_connector

    without = {name: of_connector(name, None) for name in json.loads(known.capabilities_declared(object))}
    assert sum(map(bool, without.values())) >= 4
    for name, declared in json.loads(known.capabilities_declared(object)).items():
        assert without[name] in (set(), set(declared) - {"tells_chunks", "tells_groups", "reports_leases"})


def test_an_engine_imports_declarations_and_no_vllm() -> None:
    code = (
        "import sys; from kvtrail.connector.known.probe import probe_for;"
        "[probe_for(type(name, (), {})) for name in ('OffloadConnector', 'LMCacheConnectorV1', 'OffloadingConnector')];"
        "print([m for m in sys.modules if m.partition('.')[0] in ('vllm', 'torch', 'lmcache')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_patience_is_that_of_the_settings() -> None:
    def patience(name: str, **settings: object) -> Patience:
        return of_connector(name, known.patience_declared(type(name, (), {}), settings))

    assert patience("NixlPushConnector") == Patience(480.0, 480.0)
    assert patience("NixlPushConnector", decoder_kv_blocks_ttl=900, kv_lease_duration=3600) == Patience(900.0, 3600.0)
    assert patience("MoRIIOConnector", recv_abort_timeout=7) == Patience(7.0, 60.0)
    own = type("OwnConnector", (), {"kvtrail_patience": Patience(keep_s=90.0)})
    assert of_connector("OwnConnector", known.patience_declared(own, {})) == Patience(keep_s=90.0)


def test_a_nixl_lease_is_what_its_scheduler_has_noted() -> None:
    base = pytest.importorskip("vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_scheduler")
    assert "self._reqs_need_send" in inspect.getsource(base)
    nixl = known.by_name("NixlConnector")
    assert nixl is not None
    assert nixl.lease is not None
    connector = SimpleNamespace(connector_scheduler=SimpleNamespace(_reqs_need_send={"r-1": perf_counter() + 3600}))
    assert nixl.lease(connector, "r-1") == pytest.approx(3600, abs=60)
    assert nixl.lease(connector, "r-2") is None
    assert nixl.lease(SimpleNamespace(), "r-1") is None
