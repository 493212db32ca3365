"""The demo: a real engine with a tiny model, or two that hand over to each other, with a tracer and a dashboard.

In: the options of `kvtrail demo`. Out: processes that are started, watched and ended together.
"""
