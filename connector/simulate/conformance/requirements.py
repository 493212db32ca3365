"""All requirements, and which of them a judge belongs to."""

from __future__ import annotations

from collections.abc import Sequence

from kvtrail.connector.simulate.conformance.core import CORE
from kvtrail.connector.simulate.conformance.extended import EXTENDED
from kvtrail.connector.simulate.conformance.requirement import Level, Requirement

SUITE_VERSION = "1"
"""Raised when requirements are added, or judged by more: only reports of one version can be compared cell by cell."""
REQUIREMENTS: Sequence[Requirement] = (*CORE, *EXTENDED)


def of_level(asked: str) -> Sequence[Requirement]:
    """Those of `core`, of `extended`, or `all`."""
    return [each for each in REQUIREMENTS if asked == "all" or each.level is Level(asked)]
