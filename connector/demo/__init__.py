"""The demo: a real engine with a tiny model, its tracer and its dashboard.

In: the options of `kvtrail demo`. Out: three processes, started, watched and ended together.
"""
