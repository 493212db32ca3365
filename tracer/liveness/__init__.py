"""Liveness of engines: their recorders, their launches, and how they ended. Pure: no I/O, no clock."""
