"""vLLM's real scheduler without a GPU: made-up workers and models, and runs that are recorded and judged in this process.

In: a scenario, a recorded history, or a random generator. Out: events, findings, and comparisons. Needs vLLM.
"""
