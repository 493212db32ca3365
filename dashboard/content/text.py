"""Formats times, shares, links and untrusted text for the pages.

Counts, durations and events in words come from `kvtrail.tracer.model.words`, which `audit` shares.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import parse_qsl, urlencode, urlsplit

from kvtrail.tracer.model.findings import clock as time_of_day
from kvtrail.tracer.model.findings import day
from kvtrail.tracer.model.words import NOTHING, duration, significant, size

Link = tuple[str, Mapping[str, str]]
"""A page, and the query of its URL."""
WORD_JOINER = "\u2060"
_ADDRESS = re.compile(r"(?i)(?:https?|ftp|mailto|xmpp)\\?:|www|@")
"""Text that Markdown turns into a link automatically; a joiner after it prevents that."""


def clock(at_ns: int | None, *, now_ns: int | None = None) -> str:
    """A moment in UTC: 12:00:01.250; with its date if `now_ns` is on another day."""
    if not at_ns:
        return NOTHING
    is_today = day(at_ns) == day(now_ns or at_ns)
    return time_of_day(at_ns) if is_today else f"{day(at_ns)} {time_of_day(at_ns)}"


def moment(at_ns: int) -> datetime | None:
    """A time for a table; None for 0, which means unknown."""
    return datetime.fromtimestamp(at_ns / 1e9, UTC) if at_ns else None


def short(number: float) -> str:
    """A large count: 940, 12.3 k, 4.56 M."""
    for unit in ("", " k", " M", " G"):
        if number < 999.5:
            return f"{number:,.0f}" if not unit else f"{significant(number)}{unit}"
        number /= 1000
    return f"{number:,.1f} T"


def percent(share: float | None) -> str:
    """A share: 34.1 %; 0 % and 100 % without a decimal."""
    if share is None:
        return NOTHING
    return f"{share * 100:.1f} %" if 0 < share < 0.9995 else f"{share * 100:.0f} %"


def seconds(value: float | None) -> str:
    """A duration in seconds as text; negative ones have a sign."""
    if value is None:
        return NOTHING
    return "0 s" if not value else f"{'-' * (value < 0)}{duration(round(abs(value) * 1e9))}"


def milliseconds(value: float) -> str:
    """The same for milliseconds."""
    return seconds(value / 1000)


def bandwidth(bytes_per_s: float | None) -> str:
    """Bytes per second with their unit."""
    return NOTHING if bytes_per_s is None else f"{size(round(bytes_per_s))}/s"


def plain(text: str) -> str:
    """Text escaped for a Markdown element. URLs in it do not become links: a request's id is chosen by its caller, who could
    otherwise link users to another site. The inserted joiner is invisible."""
    escaped = re.sub(r"([\\`*_{}\[\]<>#$:|~])", r"\\\1", text)
    return _ADDRESS.sub(rf"\g<0>{WORD_JOINER}", escaped)


def prose(text: str) -> str:
    """The tracer's prose for a Markdown element: text in backticks is code, the rest is escaped."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return plain(text)
    return "".join(f"`{part}`" if number % 2 else plain(part) for number, part in enumerate(parts))


def address(link: Link) -> str:
    """A link as a URL relative to the current page."""
    page, query = link
    return f"{page}?{urlencode(query)}"


def of_address(address: str) -> Link:
    """The link with this URL."""
    parts = urlsplit(address)
    return parts.path, dict(parse_qsl(parts.query, keep_blank_values=True))
