"""Re-drive: a recorded load on vLLM's real scheduler again, with the recorded lengths, arrivals and shared prefixes.

In: a history and any connector. Out: a run, and each of the connector's answers beside the recorded one.
"""
