"""Recording: an event is a tuple appended to a ring; a thread passes batches to the export process, which encodes and sends
OTLP.

In: calls of `tracing`, on the scheduler's thread. Out: OTLP protobuf to the tracer. Nothing here blocks or breaks the caller.
"""
