"""LMCache in vLLM's process."""
