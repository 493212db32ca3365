"""A recorded history driven again: vLLM's real scheduler with the recording's lengths, arrivals and prefix sharing.

`workload` makes a scenario of a history, `sharing` its prompts, `compare` holds what came of it against the recording, and
`redrive` does it all; `regression` makes a test of what it shows.
"""
