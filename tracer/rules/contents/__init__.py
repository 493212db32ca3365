"""Rules about the bytes in KV blocks."""
