"""Recorded histories, read again: loaded whole, stepped through, made smaller. Needs neither vLLM nor a connector.

What drives a history again, on vLLM's scheduler, is `kvtrail.connector.simulate.redrive`.
"""
