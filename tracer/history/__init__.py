"""Reads recorded histories: loads them, steps through them, minimizes them. Needs neither vLLM nor a connector.

`kvtrail.connector.simulate.redrive` reruns a history on vLLM's scheduler.
"""
