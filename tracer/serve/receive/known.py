"""Decides whether a new finding is known, for the metrics, which count it once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from kvtrail.tracer.model.engines import described, listed
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.model.known import Known, KnownFindings, Place
from kvtrail.tracer.serve.known_findings import KnownFindingsFile


class KnownHere:
    """The known findings, and the engines of this sidecar. The caller holds the pipeline's lock."""

    def __init__(self, file: KnownFindingsFile, engines: Mapping[str, Mapping[str, str]]) -> None:
        """`engines` returns the engines' descriptions from the store."""
        self._file = file
        self._engines = {engine: {**described({}), **about} for engine, about in engines.items()}
        self._known: Sequence[Known] = ()
        self._now: KnownFindings | None = None
        """The state at the last finding; None if an engine has changed since."""

    def describe(self, engines: Mapping[str, Mapping[str, str]]) -> None:
        """Note that engine descriptions have changed."""
        for engine, about in engines.items():
            before = self._engines.setdefault(engine, described({}))
            if any(before[field] != text for field, text in about.items()):
                before.update(about)
                self._now = None

    def has(self, finding: Finding) -> bool:
        """Whether the finding is known."""
        now_ns, known = time.time_ns(), self._file.content
        if self._now is None or known is not self._known or now_ns >= self._now.until_ns:
            self._known, self._now = known, KnownFindings(known, listed(self._engines, {}), at_ns=now_ns)
        return self._now.of(Place(finding.rule, finding.engine, finding.connector)) is not None
