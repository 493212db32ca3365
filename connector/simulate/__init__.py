"""The simulator: vLLM's real scheduler without a GPU, with fake workers and models, recorded and judged in this process.

In: a scenario, a recorded history, or a seed. Out: events, findings, and comparisons. Needs vLLM.
"""
