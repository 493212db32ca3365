"""Sums of tokens, lookups, bytes and time that the offload handled, computed from facts. Pure: no I/O, no clock."""
