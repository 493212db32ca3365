"""A timeline as an SVG within a page: a bar of phases for each request, and below it a row for each kind of call, as on the
dashboard's page of a request. The page's style sheet has the colours."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator

from kvtrail.connector.simulate.conformance.html import element
from kvtrail.connector.simulate.conformance.timeline import Lane, Mark, Timeline
from kvtrail.tracer.ledger.phases import WORDS

ROW, BAR, DOT = 20, 14, 4.5
"""Pixels: a row's height, that of a bar of phases, and the radius of a call."""
EDGE = 16
AXIS = 26
WIDEST, WIDTH = 30, 860
"""Pixels between two events at most, and of a timeline where they lie closer, down to `NARROWEST`."""
NARROWEST = 11


def drawn(timeline: Timeline) -> ET.Element:
    """The names of the rows, which stay in place, and beside them the picture, which is scrolled where it is too wide."""
    pitch = min(WIDEST, max(NARROWEST, WIDTH / max(1, timeline.events)))
    width = round(2 * EDGE + pitch * max(1, timeline.events - 1))
    names = element("div", class_="names", aria_hidden="true")
    shapes: list[ET.Element] = []
    top = 0
    for lane in timeline.lanes:
        names.append(element("div", lane.name, class_="lane", title=lane.name))
        shapes += _phases(lane, pitch, top, width)
        for number, row in enumerate(lane.rows, 1):
            names.append(element("div", row))
            shapes.append(_line(top + number * ROW + ROW / 2, width))
        for mark in lane.marks:
            shapes += _mark(mark, lane, pitch, top)
        top += (1 + len(lane.rows)) * ROW
    svg = element(
        "svg",
        *_axis(timeline.events, pitch, top),
        *shapes,
        role="img",
        aria_label=f"{timeline.events} events of {len(timeline.lanes)} lanes, in order",
        width=width,
        height=top + AXIS,
        viewBox=f"0 0 {width} {top + AXIS}",
    )
    scrolled = element("div", svg, class_="scroll", tabindex="0")
    return element("div", names, scrolled, class_="timeline")


def legend(timeline: Timeline) -> ET.Element:
    """The phases that are drawn, and the marks that are not plain."""
    phases = dict.fromkeys(phase for lane in timeline.lanes for phase, *_ in lane.phases)
    entries = [element("span", element("i", class_=f"swatch {_class(WORDS[phase])}"), WORDS[phase]) for phase in phases]
    marks = [mark for lane in timeline.lanes for mark in lane.marks]
    for name, text in (("proof", "proof of the failure"), ("raised", "call that raised")):
        if any(_group(mark) == name for mark in marks):
            shape = element("svg", _shape(name, 8, 8), width=16, height=16, viewBox="0 0 16 16", aria_hidden="true")
            entries.append(element("span", shape, text))
    return element("p", *entries, class_="legend")


def _x(number: float, pitch: float) -> float:
    return round(EDGE + (number - 1) * pitch, 1)


def _axis(events: int, pitch: float, height: int) -> Iterator[ET.Element]:
    every = next(each for each in (1, 2, 5, 10, 20, 50, 100) if each * pitch >= 28)
    for number in range(1, events + 1):
        if number == 1 or number % every == 0:
            x = _x(number, pitch)
            yield element("line", x1=x, x2=x, y1=0, y2=height, class_="grid")
            yield element("text", str(number), x=x, y=height + 17, text_anchor="middle")


def _line(y: float, width: int) -> ET.Element:
    return element("line", x1=0, x2=width, y1=y, y2=y, class_="grid")


def _phases(lane: Lane, pitch: float, top: int, width: int) -> Iterator[ET.Element]:
    yield element("line", x1=0, x2=width, y1=top, y2=top, class_="between")
    for phase, begin, end in lane.phases:
        x, word = _x(begin, pitch), WORDS[phase]
        yield element(
            "rect",
            element("title", f"{lane.name}: {word}"),
            x=x,
            y=top + (ROW - BAR) / 2,
            width=max(1.0, round(_x(end, pitch) - x, 1)),
            height=BAR,
            class_=_class(word),
        )


def _mark(mark: Mark, lane: Lane, pitch: float, top: int) -> Iterator[ET.Element]:
    x, y = _x(mark.number, pitch), top + (1 + lane.rows.index(mark.row)) * ROW + ROW / 2
    shape = _shape(_group(mark), x, y)
    raised = f"; raised {mark.raised}" if mark.raised else ""
    proof = f" ({mark.proof})" if mark.proof else ""
    shape.append(element("title", f"{mark.number}. {lane.name}, {mark.row}{proof}: {mark.text}{raised}"))
    yield shape
    if mark.proof:  # alternately above and below: proofs are often neighbours
        y += 19 if mark.number % 2 else -8
        yield element("text", mark.proof, x=x, y=y, text_anchor="middle", class_="proof")


def _group(mark: Mark) -> str:
    return "raised" if mark.raised else "proof" if mark.proof else "call"


def _shape(group: str, x: float, y: float) -> ET.Element:
    """A circle, a diamond or a cross, so that kinds differ not by colour alone."""
    if group == "call":
        return element("circle", cx=x, cy=y, r=DOT, class_=group)
    half = DOT + 1.5
    corners = [(x, y - half), (x + half, y), (x, y + half), (x - half, y)]
    if group == "raised":
        arm = half / 3
        ways = (
            (-1, -3),
            (1, -3),
            (1, -1),
            (3, -1),
            (3, 1),
            (1, 1),
            (1, 3),
            (-1, 3),
            (-1, 1),
            (-3, 1),
            (-3, -1),
            (-1, -1),
        )
        corners = [(x + arm * a, y + arm * b) for a, b in ways]
    return element("polygon", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in corners), class_=group)


def _class(phase: str) -> str:
    """A phase's class in the style sheet."""
    return f"phase-{phase.lower().replace(' ', '-')}"
