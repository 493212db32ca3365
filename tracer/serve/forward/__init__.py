"""Sends what arrives on to another OTLP receiver: all of it, or what matters.

In go a batch as it came, the events in it, and findings; out goes OTLP, over gRPC or HTTP. A request matters when something
was found in it, when something in it failed, or when it waited for long; of the rest a share is forwarded. Nothing here knows
the store, and nothing here keeps a batch waiting: what cannot be sent in time is dropped and counted.
"""
