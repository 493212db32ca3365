"""Two engines in this process, one of which prefills for the other, with a router between them.

In: a scenario of both. Out: a run, as one of a single engine.
"""
