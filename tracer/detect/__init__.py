"""Puts events in order, enters them into the ledger, and asks the rules to judge them.

In: events. Out: findings and verdicts. Pure: no I/O, no clock.
"""
