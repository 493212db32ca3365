"""Incidents that no rule was made with, in the order in which they were collected."""

from __future__ import annotations

from incidents.holdout.second import FIRST, HOLDOUT

__all__ = ["FIRST", "HOLDOUT"]
