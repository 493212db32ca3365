"""Records the chunks of a store as a paged list: complete, but rarely, so that a lost event makes no chunk unknown
forever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvtrail.connector.known.probe import Probe
from kvtrail.connector.recording.recorder import Recorder
from kvtrail.tracer.events.semconv import Kind

PAGE = 512
"""Maximum number of chunks in one event."""
PAGE_EVERY_NS = 10**9
PASS_EVERY_NS = 300 * 10**9
"""Interval between two lists; longer if the pages take longer."""


class Holdings:
    """Lists the chunks in the store of one connector object, on the scheduler's side.

    Attributes:
        due_ns: when the next page is due, by the monotonic clock.
    """

    def __init__(self, recorder: Recorder, source: bytes) -> None:
        """`source` is the encoded attributes that say who recorded."""
        self._recorder = recorder
        self._source = source
        self.due_ns = 0
        self._began_ns = 0
        self._keys: Sequence[Any] | None = None
        self._next = 0

    def record_page(self, probe: Probe, connector: Any, at_ns: int) -> None:
        """Record a page, after the events of the step: a chunk that was removed since the list began is not listed.

        Raises:
            Exception: the probe failed; the list is then abandoned without an end.
        """
        keys, first = self._keys, self._next
        self._keys, self.due_ns = None, at_ns + PAGE_EVERY_NS
        if keys is None:
            keys, first, self._began_ns = probe.held_keys(connector), 0, at_ns
            if keys is None:
                self.due_ns = at_ns + PASS_EVERY_NS
                return
        end = first + PAGE
        is_last = end >= len(keys)
        values = (probe.still_held(connector, keys[first:end]), first == 0, is_last)
        self._recorder.record(Kind.HOLDINGS, self._source, None, at_ns, at_ns, values)
        if is_last:
            self.due_ns = max(self.due_ns, self._began_ns + PASS_EVERY_NS)
        else:
            self._keys, self._next = keys, end
