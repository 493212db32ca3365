"""What forwarding counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from prometheus_client import Counter, Gauge


class Reason(StrEnum):
    """Why a request is forwarded."""

    FINDING = "finding"
    ERROR = "error"
    SLOW = "slow"
    SAMPLED = "sampled"


LEFT_OUT = "left_out"
"""Of a request for which there is no reason."""


class Dropped(StrEnum):
    """Why spans that were to be sent are lost."""

    QUEUE_FULL = "queue_full"
    REFUSED = "refused"
    REJECTED = "rejected"
    GIVEN_UP = "given_up"
    STOPPED = "stopped"


class Figures:
    """The metrics `kvtrail_forward_*`. All of them stay 0 where nothing is forwarded."""

    def __init__(self, counter: Callable[..., Counter], gauge: Callable[..., Gauge]) -> None:
        """`counter` and `gauge` make metrics that are registered."""
        self.sent = counter("forward_spans_sent", "Spans that the receiver has taken.")
        self.left_out = counter("forward_spans_left_out", "Spans that were not to be forwarded.")
        self.dropped = counter("forward_spans_dropped", "Spans that were to be forwarded and are lost.", ("reason",))
        self.requests = counter("forward_requests", "Requests that ended, by why they are forwarded.", ("reason",))
        self.early = counter("forward_decided_early", "Requests that there was no room or time to wait for.")
        self.failures = counter("forward_failures", "Attempts to send that failed.")
        self.queue_spans = gauge("forward_queue_spans", "Spans that wait to be sent.")
        self.queue_bytes = gauge("forward_queue_bytes", "Memory that they take.")
        self.held_spans = gauge("forward_held_spans", "Spans that are held until it is known whether they matter.")
        self.held_bytes = gauge("forward_held_bytes", "Memory that their requests take.")
        for why in Dropped:  # an alert sees no increase in a series that begins at 1
            self.dropped.labels(why)
        for reason in (*Reason, LEFT_OUT):
            self.requests.labels(reason)
