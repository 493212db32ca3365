"""From bytes to events: OTLP from the wire, trace files, and the logs of servers that were not traced.

In: OTLP as protobuf, JSON or JSON Lines, plain or compressed; log lines. Out: `Event`, and `Span` for foreign spans.
"""
