"""Incidents that no rule was made with, in the order in which they were collected."""

from __future__ import annotations

from incidents.holdout.second import FIRST, SECOND
from incidents.holdout.third import FIRST_BY_AREA, THIRD
from incidents.incident import Holdout

__all__ = ["FIRST", "FIRST_BY_AREA", "HOLDOUT", "SECOND", "THIRD"]

HOLDOUT: list[Holdout] = [*SECOND, *THIRD]
