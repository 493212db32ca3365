"""How sure a share is that was counted."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist


def interval(found: int, of: int) -> tuple[float, float]:
    """Wilson's interval for a share, with 95 % confidence."""
    z = NormalDist().inv_cdf(0.975)
    centre, width = found + z * z / 2, z * sqrt(found * (of - found) / of + z * z / 4)
    return (centre - width) / (of + z * z), (centre + width) / (of + z * z)
