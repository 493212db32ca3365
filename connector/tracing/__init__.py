"""`Traced<X>`: records each call between vLLM's scheduler and a connector.

In: vLLM's calls. Out: the connector's own answers, unless the guard heals one, and events for `recording`.
"""
