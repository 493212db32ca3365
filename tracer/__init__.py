"""The sidecar: receives spans, keeps the token account of every request, finds drift.

Nothing here imports vLLM, torch or the `connector` package. `semconv`, `contract`, `events`, `ledger`, `rules` and
`detect` are pure Python without I/O, so that a connector can use the same vocabulary and the same arithmetic.
"""
