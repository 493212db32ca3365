"""Where spans, accounts and findings are stored: a SQLite file.

In: batches from the pipeline. Out: what the API asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtrail.tracer.detect.lanes import Lane
from kvtrail.tracer.detect.savings import Cell
from kvtrail.tracer.model.events import Event
from kvtrail.tracer.model.findings import Finding
from kvtrail.tracer.model.spans import Span


class StoreError(RuntimeError):
    """The store refused; the text names the file and the reason."""


@dataclass(slots=True)
class Batch:
    """What is written together, or not at all.

    Attributes:
        spans: new spans, each with its event if it is one of kvtrail's.
        accounts: accounts as `Account.as_dict` gives them, with `verdict` and `findings` added.
        findings: findings that are new or have changed.
        savings: what to add to the sums of the offload's savings.
        lanes: the requests of `accounts` as lanes of the live view.
    """

    spans: list[tuple[Span, Event | None]] = field(default_factory=list)
    accounts: list[dict[str, Any]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    savings: Mapping[Cell, int] = field(default_factory=dict)
    lanes: list[Lane] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingFilter:
    """Selects the findings that meet all of its conditions.

    Attributes:
        request, engine, rule, severity, connector: as findings name them; an empty text means any.
        engines: any of these engines; None means any.
        since_ns, until_ns: last seen at or after `since_ns`, and before `until_ns`.
    """

    request: str = ""
    engine: str = ""
    rule: str = ""
    severity: str = ""
    connector: str = ""
    engines: Sequence[str] | None = None
    since_ns: int | None = None
    until_ns: int | None = None
