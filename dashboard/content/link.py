"""A link to another page, and its address."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode, urlsplit

Link = tuple[str, Mapping[str, str]]
"""A page, and the query of its address."""


def address(link: Link) -> str:
    """A link as the address of another page beside the one that is shown."""
    page, query = link
    return f"{page}?{urlencode(query)}"


def of_address(address: str) -> Link:
    """The link that has this address."""
    parts = urlsplit(address)
    return parts.path, dict(parse_qsl(parts.query, keep_blank_values=True))
