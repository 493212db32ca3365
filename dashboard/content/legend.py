"""Legends of charts as HTML: unlike a chart's own, they wrap on a narrow page instead of being cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a legend.

    Attributes:
        colour: in CSS.
        mark: `bar`, `square`, `diamond` or `cross`.
        value: a number beside the name.
        help: its meaning, as a tooltip.
    """

    name: str
    colour: str
    mark: str = "bar"
    value: str = ""
    help: str = ""


def legend(entries: Iterable[Entry]) -> str:
    """The HTML; style.css draws the marks."""
    items = (
        f'<li title="{escape(entry.help)}"><i class="{entry.mark}" style="--colour: {escape(entry.colour)}"></i>'
        f"{escape(entry.name)}{f' <b>{escape(entry.value)}</b>' if entry.value else ''}</li>"
        for entry in entries
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def of_colours(colours: Mapping[str, str]) -> str:
    """The legend of a chart: what each colour means."""
    return legend(Entry(name, colour) for name, colour in colours.items())
