"""Every incident at hand, and the legal look-alikes of every rule."""

from __future__ import annotations

from incidents.corpus import (
    any_connector,
    busy_look_alikes,
    c01_lookup,
    c04_admission,
    c07_load,
    c09_numbers,
    c12_waiting,
    c16_transfer,
    c21_store,
    groups,
    look_alikes,
    more_look_alikes,
    n_bytes,
    n_later,
    n_look_alikes,
    pairs,
    x_none,
)
from incidents.incident import Incident, LookAlike

INCIDENTS: list[Incident] = [
    incident
    for module in (
        any_connector,
        c01_lookup,
        c04_admission,
        c07_load,
        c09_numbers,
        c12_waiting,
        c16_transfer,
        c21_store,
        groups,
        n_bytes,
        n_later,
        pairs,
        x_none,
    )
    for incident in module.INCIDENTS
]
LOOK_ALIKES: list[LookAlike] = [
    *busy_look_alikes.LOOK_ALIKES,
    *look_alikes.LOOK_ALIKES,
    *more_look_alikes.LOOK_ALIKES,
    *n_look_alikes.LOOK_ALIKES,
    *n_bytes.LOOK_ALIKES,
    *any_connector.LOOK_ALIKES,
    *groups.LOOK_ALIKES,
    *pairs.LOOK_ALIKES,
]
