"""Asks the rules: events in any order are put in order, entered into the ledger, and judged.

In: events. Out: findings and verdicts. Pure: no I/O, no clock.
"""
