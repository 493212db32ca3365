"""What the pages of requests give away, and what an audit says of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sidecar import Sidecar
from sidecars import span_of

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.history.audit import Audit, audit
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.model.findings import Verdict

ALIKE, ACCUSED = 3, 10
"""How many requests with the same verdict, reason and status have their pages looked at: without findings, and with."""


class Giving(Sidecar):
    """A sidecar, and the files that its pages give away."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._pages: dict[Path, dict[str, Any]] = {}

    def hear(self, events: Sequence[Event], about: Mapping[str, str | int] | None = None) -> None:
        spans = list(map(span_of, events))
        for number, span in enumerate(spans):
            if not span.span_id:  # a heartbeat that a test made up
                span.trace_id, span.span_id = "f" * 32, f"{2**63 + number:016x}"
        self.take(otlp_json.to_protobuf(json.loads(otlp_json.spans_to_json_line(spans))))

    def take(self, payload: bytes) -> None:
        super().take(payload)
        self._pages.clear()

    def pages(self) -> Iterator[tuple[dict[str, Any], Path]]:
        """The pages of some requests of each kind, and the parts that they give away."""
        alike: Counter[tuple[str, str | None, str]] = Counter()
        for number, row in enumerate(self.reader.requests(limit=1000)):
            kind = row["verdict"], row["unknown"], row["status"]
            alike[kind] += 1
            if alike[kind] > (ACCUSED if row["verdict"] == Verdict.DRIFT else ALIKE):
                continue
            asked = {"engine": row["engine"]}
            path = self.folder / f"{number}.jsonl"
            if path not in self._pages:
                page = self.client.get(f"/api/requests/{row['request']}", params=asked).raise_for_status().json()
                path.write_bytes(self.client.get("/api/otlp", params={"request": row["request"], **asked}).content)
                self._pages[path] = page
            yield self._pages[path], path

    def assert_parts_say_no_more_than_pages(self) -> list[Audit]:
        """That no part accuses anybody whom the store does not; returns the audits."""
        known = {finding["id"] for finding in self.reader.findings(limit=10_000)}
        audits = []
        for page, path in self.pages():
            result, request = audit([path]), page["request"]["request"]
            # A call that failed is a finding of its own where the part does not show what explains it.
            assert {finding.id for finding in result.findings if finding.rule != "failed-call"} <= known, request
            assert not result.unknown_attributes, request
            audits.append(result)
        return audits
