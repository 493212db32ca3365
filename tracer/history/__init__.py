"""Recorded histories, read again: loaded whole, stepped through, made smaller. Needs neither vLLM nor a connector.

What runs a history again is `kvtrail.connector.simulate`: `rerun` against a connector, `redrive` on a scheduler.
"""
