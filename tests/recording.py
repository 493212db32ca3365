"""What the recorders of this process record, as a trace file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from memory import MemoryTransport
from processes import SLOW_S

from kvtrail.connector.recording import exporter, recorder
from kvtrail.tracer.ingest import otlp_json, protobuf


@contextmanager
def recording(path: Path, *, events_a_line: int = 8, as_sent: list[bytes] | None = None) -> Iterator[None]:
    """Write all that is recorded inside to a file, when it is over. The requests themselves, and the goodbyes after them, are
    added to `as_sent`."""
    memory = MemoryTransport()
    with patch.object(exporter, "from_environment", lambda: exporter.InProcessExporter(memory)):
        try:
            yield
        finally:
            for each in recorder.recorders():
                assert each.flush(SLOW_S)
                assert each.dropped == 0
            spans = [span for payload in memory.payloads for span in protobuf.spans(payload)]
            lines = [
                otlp_json.spans_to_json_line(spans[first : first + events_a_line])
                for first in range(0, len(spans), events_a_line)
            ]
            path.write_text("\n".join(lines) + "\n")
            for each in recorder.recorders():
                each.close(SLOW_S)
            recorder._recorders.clear()
            if as_sent is not None:
                as_sent += memory.payloads
