"""What is known of connectors is found by their classes, and by nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvtrail.connector import known
from kvtrail.connector.known.environment import Environment
from kvtrail.connector.known.fake import Fake
from kvtrail.connector.known.probe import Probe

FOLDERS = sorted(path.parent for path in Path(known.__file__).parent.glob("*/__init__.py"))
BASES = {"probe": Probe, "fake": Fake, "environment": Environment}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_declares_a_connector_and_its_files_are_its_parts(folder: Path) -> None:
    connector = {each.package: each for each in known._by_class().values()}[f"{known.__name__}.{folder.name}"]
    assert all(known.by_name(name) is connector for name in connector.classes)
    assert {path.stem for path in folder.glob("*.py")} <= {"__init__", *BASES}
    for part, base in BASES.items():
        cls = known.part_of(type(connector.classes[0], (), {}), part)
        assert (cls is not None) == (folder / f"{part}.py").exists()
        assert cls is None or issubclass(cls, base)


def test_a_subclass_is_known_and_a_stranger_is_not() -> None:
    native = type("OffloadingConnector", (), {})
    derived = type("Mine", (native,), {})
    assert known.by_class(derived) is known.by_name("OffloadingConnector") is not None
    assert known.by_class(type("Stranger", (), {})) is None
    assert json.loads(known.capabilities_declared(derived))["Mine"] == ["exclusive_transfers"]
    own = type("Mine", (native,), {"kvtrail_capabilities": ("hands_on", "of_a_newer_kvtrail")})
    assert json.loads(known.capabilities_declared(own))["Mine"] == ["exclusive_transfers", "hands_on"]
    assert "Mine" not in json.loads(known.capabilities_declared(native))


def test_traces_without_a_declaration_show_the_same_capabilities() -> None:
    """Of the connectors that were recorded before there was a declaration; a newer one is in no such trace."""
    from kvtrail.tracer.model.capabilities import of_connector

    without = {name: of_connector(name, None) for name in json.loads(known.capabilities_declared(object))}
    assert sum(map(bool, without.values())) >= 4
    for name, declared in json.loads(known.capabilities_declared(object)).items():
        assert without[name] in (set(), set(declared))


def test_an_engine_imports_declarations_and_no_vllm() -> None:
    code = (
        "import sys; from kvtrail.connector.known.probe import probe_for;"
        "[probe_for(type(name, (), {})) for name in ('OffloadConnector', 'LMCacheConnectorV1', 'OffloadingConnector')];"
        "print([m for m in sys.modules if m.partition('.')[0] in ('vllm', 'torch', 'lmcache')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
