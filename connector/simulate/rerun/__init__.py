"""Re-run: the recorded calls again, on the scheduler's side of a connector.

In: a history and a connector class. Out: for each call, whether the answer is the recorded one, and what a difference means.
"""
