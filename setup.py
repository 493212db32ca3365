"""What pyproject.toml cannot say of the build: the wheel carries a bill of its materials, in CycloneDX:
`sboms/kvtrail.cdx.json` in its dist-info (PEP 770).

It names what kvtrail asks for, by extra, each in the version of `constraints.txt`, which is the one that is tested. Two
builds of one checkout make the same bill: it has neither a time nor a random number.
"""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

ROOT = Path(__file__).parent
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
NOT_SHIPPED = {"dev"}
"""Extras that no installation has."""


class WheelWithBill(bdist_wheel):  # type: ignore[misc]  # setuptools has no types
    """A wheel with its bill of materials."""

    def write_wheelfile(self, folder: str, *arguments: Any, **options: Any) -> None:
        super().write_wheelfile(folder, *arguments, **options)
        path = Path(folder) / "sboms" / "kvtrail.cdx.json"
        path.parent.mkdir()
        of = self.distribution
        asked = {"": list(of.install_requires), **of.extras_require}
        path.write_text(json.dumps(bill(of.get_version(), asked), indent=1) + "\n")


def bill(version: str, asked: dict[str, list[str]]) -> dict[str, Any]:
    """The bill of a version that asks for these requirements, by extra; without an extra under the empty name.

    Raises:
        KeyError: a requirement is not in constraints.txt, so nobody has tried it.
    """
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tested = {_plain(name): number for name, _, number in (line.partition("==") for line in lines if "==" in line)}
    components: dict[str, dict[str, Any]] = {}
    for extra, requirements in sorted(asked.items()):
        for requirement in requirements:
            name = _plain(NAME.match(requirement)[0])  # type: ignore[index]
            if extra in NOT_SHIPPED or name == "kvtrail":
                continue
            component = components.setdefault(name, _component("library", name, tested[name]))
            said = component.setdefault("properties", [])
            said.append({"name": f"kvtrail:asked-for{':' if extra else ''}{extra}", "value": requirement})
    for component in components.values():
        by_default = any(each["name"] == "kvtrail:asked-for" for each in component["properties"])
        component["scope"] = "required" if by_default else "optional"
    own = {**_component("application", "kvtrail", version), "licenses": [{"license": {"id": "Apache-2.0"}}]}
    found = [components[name] for name in sorted(components)]
    content: dict[str, Any] = {
        "metadata": {"lifecycles": [{"phase": "build"}], "component": own},
        "components": found,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [each["bom-ref"] for each in found]}],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(content, sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        **content,
    }


def _component(kind: str, name: str, version: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _plain(name: str) -> str:
    """A distribution's name as the index has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    setup(cmdclass={"bdist_wheel": WheelWithBill})
