"""LMCache in a process of its own."""
