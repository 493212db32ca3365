"""The worker side of a bare scheduler: a connector's own workers or fakes, on KV caches in memory that a made-up model writes
and reads.

In: the scheduler's output of a step. Out: reports of transfers, and which KV each request has read.
"""
