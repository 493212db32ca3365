"""A prompt as a bar: its parts in order, by the cause for which each was reused or computed, with links to explanations.

An `entry` is one admission as the API returns it: its epoch, tokens, time, and parts in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import nlargest
from html import escape

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content.causes import colour
from kvtrail.dashboard.content.text import Link, address
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.tracer.model.cause_words import named_sentence, runs
from kvtrail.tracer.model.words import count, some

MAX_ROWS = 100
"""Maximum number of runs of a prompt with their own row, the longest first."""
AROUND_NS = 5 * 10**9
"""The time range of the lanes before and after an event."""


def waterfall(entry: Row, timeline: Row, *, dark: bool) -> str:
    """The prompt as HTML: a bar of its runs in order, to scale, and a list with the cause of each. Both link to the
    explanation; style.css draws them."""
    found = runs(entry["parts"])
    labels = [_label(run, entry) for run in found]
    hrefs = [escape(address(link)) for link in links(found, entry, timeline)]
    colours = [escape(colour(run["cause"], dark=dark)) for run in found]
    bar = "".join(
        f'<a href="{href}" title="{escape(label)}" aria-label="{escape(label)}"'
        f' style="flex-grow: {run["tokens"]}; --colour: {shown}"></a>'
        for run, label, href, shown in zip(found, labels, hrefs, colours, strict=True)
        if run["tokens"]
    )
    with_row = set(nlargest(MAX_ROWS, range(len(found)), key=lambda number: found[number]["tokens"]))
    items = "".join(
        f'<li><a href="{hrefs[number]}"><i style="--colour: {colours[number]}"></i>'
        f"<b>{escape(_range(run))}</b><span>{escape(_said(run, entry))}</span></a></li>"
        for number, run in enumerate(found)
        if number in with_row
    )
    left_out = [run["tokens"] for number, run in enumerate(found) if number not in with_row]
    rest = ""
    if left_out:
        shorter = f"and {some(len(left_out), 'shorter part')}, {some(sum(left_out), 'token')} in all"
        rest = f'<li class="rest"><span>{shorter}</span></li>'
    title = f"The {some(entry['total'], 'token')} by cause, in their order"
    return f'<nav class="waterfall" aria-label="{title}"><div class="parts">{bar}</div><ol>{items}{rest}</ol></nav>'


def _label(run: Row, entry: Row) -> str:
    return f"tokens {_range(run)}: {_said(run, entry)}"


def _said(run: Row, entry: Row) -> str:
    """The description of a run, without the backticks around settings, which are Markdown."""
    return named_sentence(run, at_ns=entry["at_ns"]).replace("`", "")


def _range(run: Row) -> str:
    return f"{count(run['start'])} to {count(run['start'] + run['tokens'])}"


def links(found: Iterable[Row], entry: Row, timeline: Row) -> list[Link]:
    """The link of each run: the step of this request that shows it, the other request that caused it, or the lanes at that
    time; otherwise the admission itself."""
    steps = {step["span_id"]: number for number, step in enumerate(timeline["steps"], 1)}
    engine = timeline["request"]["engine"]
    own = {"id": timeline["request"]["request"], "engine": engine}
    admission: Link = ("request", {**own, "tab": "replay", "step": str(steps.get(entry["span_id"], 1))})
    return [_link(run, steps, own) or admission for run in found]


def _link(run: Row, steps: Mapping[str, int], own: Mapping[str, str]) -> Link | None:
    if number := steps.get(run.get("span_id", "")):
        return "request", {**own, "tab": "replay", "step": str(number)}
    engine = run.get("engine") or own["engine"]
    if run.get("request") and not run.get("others"):
        return "request", {"id": run["request"], "engine": engine}
    if at_ns := run.get("at_ns"):
        around = TimeRange(at_ns - AROUND_NS, (run.get("to_ns") or at_ns) + AROUND_NS)
        return "requests", {**around.address, "view": "lanes", "on": engine}
    return None
