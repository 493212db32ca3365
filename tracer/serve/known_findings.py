"""The file of known findings (`kvtrail serve --known-findings`): a YAML list with one entry for each.

- rule: stale-lookup
  connector: LMCacheConnectorV1
  version: 0.31.0
  until: 2026-09-01
  why: LMCache #2158, fixed in vLLM 0.32
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict

from kvtrail.tracer.model.engines import described, listed
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.model.known import NEVER_NS, Known, KnownFindings, Place
from kvtrail.tracer.model.nearest import did_you_mean
from kvtrail.tracer.rules import pages
from kvtrail.tracer.rules.old_names import current
from kvtrail.tracer.serve.watched_file import WatchedFile, read_yaml

Text = Annotated[str, Meta(min_length=1, max_length=500)]


class Entry(Struct, forbid_unknown_fields=True):
    """An entry of the file."""

    rule: Text
    why: Text
    engine: Text = ""
    connector: Text = ""
    version: Text = ""
    until: Text = ""

    def __post_init__(self) -> None:
        """Raises ValueError if there is no such rule, or no such time."""
        self.rule, rules = current(self.rule), pages.files()
        if self.rule not in rules:
            raise ValueError(f"there is no rule {self.rule!r}{did_you_mean(self.rule, rules)}")
        _end_ns(self.until)


class KnownFindingsFile(WatchedFile[Sequence[Known]]):
    """The known findings of a file, which is reloaded when it changes."""

    def __init__(self, path: Path | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Without a file, nothing is known. Raises Refused if the file cannot be used."""
        super().__init__(path, read, (), clock=clock)


class KnownHere:
    """Decides whether a new finding of this sidecar is known, for the metrics, which count it once. The caller holds the
    pipeline's lock."""

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


def read(path: Path) -> Sequence[Known]:
    """The entries of a file.

    Raises:
        Refused: it cannot be read, or has another content; the text also names the line of the entry.
    """
    entries = read_yaml(path, "known findings", list[Entry], [])
    return tuple(Known(**asdict(each), until_ns=_end_ns(each.until)) for each in entries)


def _end_ns(text: str) -> int:
    """Parse a date (its end counts) or a time, in UTC unless it has a zone, to Unix ns; an empty text is never. Raises
    ValueError."""
    if not text:
        return NEVER_NS
    try:
        end = datetime.fromisoformat(text)
        if ":" not in text:
            end += timedelta(days=1)
        end = end if end.tzinfo else end.replace(tzinfo=UTC)
        return min(NEVER_NS, int(end.timestamp()) * 10**9)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a date or time: write 2026-09-01, or 2026-09-01T12:00:00Z") from None
