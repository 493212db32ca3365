"""Terminal output: findings, steps of a replay, progress.

In: audits, findings and players. Out: lines of text or JSON.
"""
