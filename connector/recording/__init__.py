"""The hot path and its other end: events go into a ring as tuples, and leave a second process as OTLP.

In: calls of `tracing`, on the scheduler's thread. Out: OTLP protobuf to the tracer. Nothing here blocks or breaks the caller.
"""
