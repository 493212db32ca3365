"""All requirements, as `requirements.toml` has them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from kvtrail.connector.simulate.conformance.requirement import Feature, Level, Requirement

FILE = "requirements.toml"
SUITE_VERSION = "1"
"""Raised when requirements are added, or judged by more: only reports of one version can be compared cell by cell."""


def load(text: str) -> Sequence[Requirement]:
    """The requirements of a file's text.

    Raises:
        ValueError: one of them lacks something, has something unknown, or comes twice; the text says which.
    """
    found: dict[str, Requirement] = {}
    for entry in tomllib.loads(text)["requirement"]:
        name = entry.get("id")
        if name in found:
            raise ValueError(f"{FILE}: {name} comes twice")
        try:
            found[name] = _requirement(entry)
        except (TypeError, ValueError) as wrong:
            raise ValueError(f"{FILE}: {name}: {wrong}") from wrong
    return tuple(found.values())


def _requirement(entry: Mapping[str, Any]) -> Requirement:
    feature = entry.get("feature")
    lists = {name: tuple(entry.get(name, ())) for name in ("judged_by", "reached_by")}
    made = Requirement(**{**entry, **lists, "feature": None if feature is None else Feature(feature)})
    if (made.level is Level.CORE) != (feature is None):
        raise ValueError("an extended requirement has a feature, and one of core has none")
    if not all((made.sentence, made.source, made.judged_by, made.reached_by)):
        raise ValueError("a sentence, a source, judges and points are needed")
    return made


REQUIREMENTS = load(files(__package__).joinpath(FILE).read_text(encoding="utf-8"))


def of_level(asked: str) -> Sequence[Requirement]:
    """Those of `core`, of `extended`, or `all`."""
    return [each for each in REQUIREMENTS if asked == "all" or each.level is Level(asked)]
