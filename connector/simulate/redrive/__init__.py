"""Re-drive: a recorded history on vLLM's real scheduler again, with the recorded lengths, arrivals and shared prefixes.

In: a history and any connector. Out: a run, and how closely it follows the recording.
"""
