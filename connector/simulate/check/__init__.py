"""A torture test for connectors: random but reproducible workloads on vLLM's real scheduler, with the rules as the oracle.

In: a connector, profiles, a seed and a budget. Out: shrunk failures, each with a trace and a test, and reports.
"""
