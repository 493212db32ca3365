"""What a terminal shows: findings, steps of a replay, progress.

In: findings, accounts and histories. Out: lines of text or JSON.
"""
