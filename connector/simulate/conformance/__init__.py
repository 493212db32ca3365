"""The suite that a connector passes: what vLLM's connector interface requires, as a list of requirements with their
sources, and what a session of `check` says of each.

In: a connector, a level and a budget. Out: one report, with each requirement passed, failed or not exercised.
"""
