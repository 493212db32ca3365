"""Recorded histories, read again: loaded whole, stepped through, made smaller. Needs neither vLLM nor a connector.

What runs a history again, against a connector or on a scheduler, is `connector.replay`.
"""
