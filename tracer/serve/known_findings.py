"""The file of known findings (`kvtrail serve --known-findings`): a list in YAML, with an entry for each.

- rule: stale-lookup
  connector: LMCacheConnectorV1
  version: 0.31.0
  until: 2026-09-01
  why: LMCache #2158, fixed in vLLM 0.32
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path

import yaml

from kvtrail.tracer.model.known import NEVER_NS, Known
from kvtrail.tracer.model.nearest import did_you_mean
from kvtrail.tracer.rules import pages
from kvtrail.tracer.rules.old_names import current
from kvtrail.tracer.serve.watched_file import Unusable, WatchedFile, read_yaml

KEYS = ("rule", "engine", "connector", "version", "until", "why")
NEEDED = ("rule", "why")
MAX_TEXT = 500
"""Characters of a value."""
_NULL = "tag:yaml.org,2002:null"


class KnownFindingsFile:
    """The known findings of a file, which is read again when it has changed."""

    def __init__(self, path: Path | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Without a file, nothing is known. Raises Unusable if the file cannot be used."""
        self._file = None if path is None else WatchedFile(path, read, clock=clock)

    @property
    def known(self) -> Sequence[Known]:
        """What is known now; the same object until the file changes."""
        return () if self._file is None else self._file.content

    @property
    def status(self) -> str | None:
        """`ok`, or why the file as it is now is not used; None if there is no file."""
        if self._file is None:
            return None
        _ = self._file.content
        return self._file.trouble or "ok"


def read(path: Path) -> Sequence[Known]:
    """The entries of a file.

    Raises:
        Unusable: it cannot be read, or says something else; the text also names the line.
    """
    root = read_yaml(path, "known findings", partial(yaml.compose, Loader=yaml.SafeLoader))
    if root is None:
        return ()
    if not isinstance(root, yaml.SequenceNode):
        raise _wrong(path, root, "known findings are a list: begin each entry with `- rule:`")
    return tuple(_entry(path, node) for node in root.value)


def _entry(path: Path, node: yaml.Node) -> Known:
    if not isinstance(node, yaml.MappingNode):
        raise _wrong(path, node, f"an entry has keys with values: {', '.join(KEYS)}")
    values: dict[str, str] = {}
    until_ns = NEVER_NS
    for key, value, name in _pairs(path, node):
        if name in values:
            raise _wrong(path, key, f"{name!r} is given twice")
        if not isinstance(value, yaml.ScalarNode) or value.tag == _NULL or not (text := value.value.strip()):
            raise _wrong(path, value, f"{name!r} must be a text")
        if len(text) > MAX_TEXT:
            raise _wrong(path, value, f"{name!r} has {len(text):,} characters; {MAX_TEXT} are the most")
        if name == "rule":
            text = current(text)
            if text not in (rules := pages.files()):
                raise _wrong(path, value, f"there is no rule {text!r}{did_you_mean(text, rules)}")
        if name == "until":
            until_ns = _end_ns(path, value, text)
        values[name] = text
    if lacking := [name for name in NEEDED if name not in values]:
        raise _wrong(path, node, f"the entry has no {lacking[0]!r}")
    return Known(**values, until_ns=until_ns)


def _pairs(path: Path, node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node, str]]:
    """The keys and values of an entry, and the keys as texts."""
    for key, value in node.value:
        name = str(key.value)
        if name not in KEYS:
            raise _wrong(path, key, f"an entry has {', '.join(KEYS)}, and no {name!r}{did_you_mean(name, KEYS)}")
        yield key, value, name


def _end_ns(path: Path, node: yaml.Node, text: str) -> int:
    """The end of a day, or a time, in UTC unless it says otherwise; Unix nanoseconds."""
    try:
        try:
            day = date.fromisoformat(text)
        except ValueError:
            end = datetime.fromisoformat(text)
        else:
            end = datetime(day.year, day.month, day.day) + timedelta(days=1)
        end = end if end.tzinfo else end.replace(tzinfo=UTC)
        return min(NEVER_NS, int(end.timestamp()) * 10**9)
    except (ValueError, OverflowError):
        raise _wrong(path, node, f"{text!r} is no date or time: write 2026-09-01, or 2026-09-01T12:00:00Z") from None


def _wrong(path: Path, node: yaml.Node, text: str) -> Unusable:
    return Unusable(f"{path}, line {node.start_mark.line + 1}: {text}")
