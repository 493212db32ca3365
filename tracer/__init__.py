"""The sidecar: receives spans, keeps a token account for every request, and finds drift.

Nothing here imports vLLM, torch or `kvtrail.connector`. `model` and `detect` are pure Python without I/O, so a connector can
use the same vocabulary and the same arithmetic.
"""
