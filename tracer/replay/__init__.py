"""Recorded histories, read again: loaded whole, stepped through, made smaller. Needs neither vLLM nor a connector.

What runs a history again is `connector.rerun`, against a connector, and `connector.redrive`, on a scheduler.
"""
