"""Whether a new finding is silenced: for the metrics, which count it once, when it is made."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from kvtrail.tracer.model.engines import described, listed
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.model.silences import Place, Silence, Silencing
from kvtrail.tracer.store.sqlite.store import SqliteWriter


class Silences:
    """The silences that this sidecar knows, and the engines that they may be about. The caller holds the pipeline's lock."""

    def __init__(self, writer: SqliteWriter) -> None:
        self._writer = writer
        self._known = {each.id: each for each in writer.silences()}
        self._engines = {engine: {**described({}), **about} for engine, about in writer.descriptions().items()}
        self._silencing: Silencing | None = None
        """As of the last finding; None once something has changed since."""

    @property
    def all(self) -> Sequence[Silence]:
        return [*self._known.values()]

    def put(self, silences: Sequence[Silence]) -> None:
        """Store new and changed silences, and go by them from now on. Raises StoreError."""
        self._writer.put_silences(silences)
        for each in silences:
            if (known := self._known.get(each.id)) is None or known.written_ns < each.written_ns:
                self._known[each.id] = each
        self._silencing = None

    def describe(self, engines: Mapping[str, Mapping[str, str]]) -> None:
        """Engines have described themselves."""
        for engine, about in engines.items():
            known = self._engines.setdefault(engine, described({}))
            if any(known[field] != text for field, text in about.items()):
                known.update(about)
                self._silencing = None

    def silences(self, finding: Finding) -> bool:
        """Whether an active silence covers this finding."""
        now_ns = time.time_ns()
        if self._silencing is None or now_ns >= self._silencing.until_ns:
            self._silencing = Silencing(self._known.values(), listed(self._engines, {}), at_ns=now_ns)
        return self._silencing.of(Place(finding.rule, finding.engine, finding.connector)) is not None


def newer(those: Iterable[Silence], than: Iterable[Silence]) -> list[Silence]:
    """Of those silences, the ones that others do not have, or have in an earlier version."""
    known = {each.id: each.written_ns for each in than}
    return [each for each in those if each.written_ns > known.get(each.id, -1)]
