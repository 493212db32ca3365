"""The suite's report as one HTML file for a connector's maintainer: the verdict, the requirements, those that were not
exercised, and for each failure its events, its explanation, the test with its workload, and the command that shows it again.

It needs no network, and its Content-Security-Policy allows none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from kvtrail.tracer.events.events import Event
from kvtrail.tracer.events.semconv import ROOTS, Kind
from kvtrail.tracer.history.history import load
from kvtrail.tracer.history.judging import findings_of
from kvtrail.tracer.model.words import count, described, kind, some
from kvtrail.tracer.reports.terminal import plain
from kvtrail.tracer.rules import pages

NAME = "index.html"
Report = Mapping[str, Any]
"""The suite's report, as in its JSON document."""
MOST_EVENTS = 300
"""Maximum number of shown events. Of more events, the last ones of the named requests and of the engine are shown."""
NOT_SHOWN = frozenset({Kind.HEARTBEAT, Kind.STATS, Kind.HOLDINGS, Kind.PREFIX_CACHE})
"""Kinds of events that are not calls."""
_INLINE = re.compile(r"`([^`\n]+)`|(https?://[^\s<>\"'()\[\]]*[^\s<>\"'()\[\].,;:])")


def as_html(report: Report, folder: Path) -> str:
    """The page of a report whose traces and tests are in a folder."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda of: printable(of) if isinstance(of, str) and not isinstance(of, Markup) else of,
        trim_blocks=True,
    )
    return environment.get_template("page.html").render(
        report=report,
        groups=[(title, list(of)) for title, of in groupby(report["requirements"], _heading)],
        numbers={each["id"]: number for number, each in enumerate(report["failures"], 1)},
        failures=[_failure(each, folder) for each in report["failures"]],
        count=count,
        some=some,
        json=json.dumps,
        inline=inline,
    )


def write(report: Report, folder: Path) -> Path:
    """Write the page beside the report; returns the file.

    Raises:
        OSError: the folder cannot be written to.
    """
    path = folder / NAME
    path.write_text(as_html(report, folder), encoding="utf-8")
    return path


def inline(text: str) -> Markup:
    """A text as HTML, with its code in backticks and its links."""
    parts, end = [], 0
    for found in _INLINE.finditer(text):
        code, address = found.groups()
        made = Markup("<code>{0}</code>" if code else '<a href="{0}" rel="noreferrer">{0}</a>')
        parts += [escape(printable(text[end : found.start()])), made.format(printable(code or address))]
        end = found.end()
    return Markup("").join([*parts, escape(printable(text[end:]))])


def printable(text: str) -> str:
    """Untrusted text as HTML can hold it: control characters but line breaks are escaped."""
    return "\n".join(map(plain, text.split("\n")))


def _heading(requirement: Report) -> str:
    feature = requirement["feature"]
    return f"extended: {feature}" if feature else str(requirement["level"])


def _failure(of: Report, folder: Path) -> dict[str, Any]:
    """A failure with the data that the page shows of its rule, its trace and its test."""
    rule = next((rule for rule in pages.files() if f"rule: {rule}" == of["id"]), None)
    return {
        **of,
        **_events(of, rule, folder),
        "rule": None if rule is None else pages.page(rule),
        "source": (folder / of["test"]).read_text(encoding="utf-8"),
    }


def _events(of: Report, rule: str | None, folder: Path) -> dict[str, Any]:
    """The events of a failure's run in words, in order, and the number of events that are left out."""
    events = load([folder / of["trace"]]).events
    findings = [each for each in findings_of(events).values() if rule is not None and each.rule == rule]
    proofs = {witness.span_id: witness.label for finding in findings[:1] for witness in finding.witness}
    shown = [event for event in events if event.kind not in NOT_SHOWN]
    kept = shown
    if len(shown) > MOST_EVENTS:
        words = set(re.findall(r"[\w-]+", f"{of['text']} {of['details']}"))
        named = {event.request for event in shown if event.request in words or event.span_id in proofs}
        kept = [event for event in shown if event.request is None or event.request in named][-MOST_EVENTS:]
    several = len({event.engine for event in events}) > 1
    return {
        "left_out": len(shown) - len(kept),
        "events": [
            {
                "number": number,
                "request": _about(event, several=several),
                "call": "end" if event.kind in ROOTS else kind(event.kind),
                "says": described(event.kind, event.numbers()),
                "proof": proofs.get(event.span_id, ""),
                "raised": event.error or "",
            }
            for number, event in enumerate(kept, 1)
        ],
    }


def _about(event: Event, *, several: bool) -> str:
    who = "the engine" if event.request is None else event.request
    return f"{who} of {event.engine[:8]}" if several else who
