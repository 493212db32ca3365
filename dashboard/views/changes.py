"""What changed at a moment, or between two ranges; what probably caused it, and which requests explain it."""

from __future__ import annotations

import time
from typing import NamedTuple

import streamlit as st

from kvtrail.dashboard.client import Row, TracerAway
from kvtrail.dashboard.content import changes, markers, text, trends
from kvtrail.dashboard.content.legend import of_colours
from kvtrail.dashboard.content.time_range import EXAMPLES, TimeRange, parsed, typed
from kvtrail.dashboard.table.columns import TENTHS
from kvtrail.dashboard.views import address, picker, tables
from kvtrail.dashboard.views.answers import read, tracer
from kvtrail.dashboard.views.context import is_dark
from kvtrail.dashboard.views.filters import one_of
from kvtrail.dashboard.views.links import link
from kvtrail.dashboard.views.tables import number_column
from kvtrail.dashboard.views.widgets import set_to, when_chosen
from kvtrail.tracer.model.words import some

AT, BEFORE, MEASURE = "at", "before", "measure"
"""Names in the address, and the session's keys of their fields: the moment; the earlier range; the measure of the table."""
MODES = {"moment": "Around a moment", "ranges": "With another range"}
EVERY_S = 30
"""How often the page asks again where its range moves with the clock: sums are by the minute."""
MOST_SAID = 5
"""Sentences about measures that are shown outside of the expander."""
MOST_DRAWN_NS = 14 * 24 * 3600 * 10**9
"""Ranges that lie further apart are not drawn as one picture."""


class Question(NamedTuple):
    """What is compared: the range `after` with the one `before` it; `at_ns` where they meet at a moment."""

    before: TimeRange
    after: TimeRange
    at_ns: int | None

    @property
    def parameters(self) -> dict[str, int]:
        """Those of `/api/changes`."""
        if self.at_ns is not None:
            return {"at_ns": self.at_ns, "since_ns": self.before.since_ns, "until_ns": self.after.until_ns}
        before = {"before_since_ns": self.before.since_ns, "before_until_ns": self.before.until_ns}
        return {**before, **self.after.query}

    def moved_to(self, shown: TimeRange) -> Question:
        """The same question when the picker's range has moved with the clock."""
        if self.at_ns is None:
            return self._replace(after=shown)
        if not shown.since_ns < self.at_ns < shown.until_ns:
            return self
        return Question(TimeRange(shown.since_ns, self.at_ns), TimeRange(self.at_ns, shown.until_ns), self.at_ns)

    @property
    def around(self) -> TimeRange:
        """From the begin of the one to the end of the other."""
        ends = (self.before, self.after)
        return TimeRange(min(each.since_ns for each in ends), max(each.until_ns for each in ends))


def ask_for_ranges(shown: TimeRange) -> Question:
    """The fields in which a person says what is compared."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        with st.container(width=240):
            mode = one_of("Compare", [*MODES], name="compare", default="moment", text=MODES.__getitem__)
        if mode == "ranges":
            return Question(_earlier_range(shown), shown, None)
        at_ns = _moment(shown)
        return Question(TimeRange(shown.since_ns, at_ns), TimeRange(at_ns, shown.until_ns), at_ns)


def _moment(shown: TimeRange) -> int:
    """The moment that the address names, or the middle of the range; and the fields to choose another."""
    now_ns = time.time_ns()
    named = parsed(address.query().get(AT, ""), now_ns=now_ns)
    is_inside = named is not None and shown.since_ns < named < shown.until_ns
    at_ns = named if is_inside and named is not None else (shown.since_ns + shown.until_ns) // 2
    set_to(AT, text.clock(at_ns, now_ns=now_ns).partition(".")[0])

    _field(
        AT,
        "At (UTC)",
        help=f"A moment inside the range: what was before it is compared with what came after. Type {EXAMPLES}.",
        width=220,
    )
    _choose_marker(shown)
    if named is not None and not is_inside:
        st.caption("The moment lies outside the range: its middle is taken.")
    return at_ns


def _field(name: str, label: str, *, help: str, width: int) -> None:
    """A text field; what is typed becomes the part `name` of the address."""

    def write() -> None:
        address.change({name: st.session_state[name]})

    st.text_input(label, key=name, on_change=when_chosen(name, write), help=help, width=width)


def _choose_marker(shown: TimeRange) -> None:
    """A choice of what happened in the range, which becomes the moment."""
    try:
        marked = tracer().markers(**shown.query)
    except TracerAway:
        return  # the page below shows the error
    texts = {str(each["at_ns"]): markers.in_a_line(each, now_ns=time.time_ns()) for each in marked}
    if not texts:
        return
    key = "marker"
    set_to(key, None)

    def write() -> None:
        if chosen := st.session_state[key]:
            address.change({AT: text.clock(int(chosen), now_ns=time.time_ns())})

    st.selectbox(
        "Or at what happened then",
        [*texts],
        index=None,
        key=key,
        on_change=when_chosen(key, write),
        format_func=texts.__getitem__,
        placeholder=some(len(texts), "marker"),
        width=420,
    )


def _earlier_range(shown: TimeRange) -> TimeRange:
    """The range that the address names, or the one that ends where the picker's begins; and the field to type another."""
    now_ns, named = time.time_ns(), address.query().get(BEFORE, "")
    directly = shown.fixed.shifted(-1)
    try:
        found = typed(named, now_ns=now_ns, shown=shown) if named else directly
        why = ""
    except ValueError as error:
        found, why = directly, str(error)
    set_to(BEFORE, found.field())

    _field(
        BEFORE,
        "The range above, against (UTC)",
        help=f"Any other range, such as the same hour of yesterday. Type {EXAMPLES}.",
        width=390,
    )
    if why:
        st.error(text.plain(why))
    return found


class Answer(NamedTuple):
    """The data of the page, queried together."""

    report: Row
    savings: Row | None
    markers: list[Row]


def page(first_asked: Question) -> None:
    """Draw the page, again at each refresh."""
    asked = first_asked.moved_to(picker.current())

    def ask() -> Answer:
        source, around = tracer(), asked.around
        is_near = around.until_ns - around.since_ns <= MOST_DRAWN_NS
        return Answer(
            report=source.changes(**asked.parameters),
            savings=source.efficiency(**around.query) if is_near else None,
            markers=source.markers(**around.query) if is_near else [],
        )

    answer = read(ask, key=f"changes {address.query()}")
    if answer is None:
        return
    report = answer.report
    if answer.savings is not None and answer.savings["trend"]:
        st.caption("**Tokens of admitted requests, by where they came from**")
        st.html(of_colours(trends.source_colours(answer.savings, dark=is_dark())))
        ends = [] if asked.at_ns is None else [asked.at_ns]
        if not ends:
            ends = [asked.before.until_ns, asked.after.since_ns]
        drawn = [*answer.markers, *(markers.moment(at_ns) for at_ns in dict.fromkeys(ends))]
        picker.chart_over_time(trends.sources_over_time(answer.savings, dark=is_dark()), drawn, key="changed_sources")
    likely(report, asked)
    found = changes.in_order([*report["changes"], *report["requests"]])
    moved(found, report)
    groups([each for each in found if changes.is_large(each)] or found, report, asked)


def likely(report: Row, asked: Question) -> None:
    """What probably caused it."""
    if not report["likely"]:
        return
    st.subheader("What probably caused it", anchor=False)
    with st.container(key="likely", gap=None):
        for each in report["likely"]:
            page_name, query = changes.of_cause(each, asked.after, asked.around)
            link(page_name, f"{text.plain(each['text'])} →", icon=changes.cause_icon(each["kind"]), query=query)


def moved(found: list[Row], report: Row) -> None:
    """A sentence for each measure that changed."""
    st.subheader("What moved", anchor=False)
    said = changes.sentences(found, report["engine_names"] | report["tenant_names"])
    if not said:
        st.info(changes.unchanged(report))
    _bullets(said[:MOST_SAID])
    if rest := said[MOST_SAID:]:
        with st.expander("What changed less"):
            _bullets(rest)
    st.caption(changes.rests_on(report, now_ns=time.time_ns()))


def _bullets(sentences: list[str]) -> None:
    st.markdown("\n".join(f"- {each}" for each in sentences))


def groups(found: list[Row], report: Row, asked: Question) -> None:
    """The groups that explain one measure; a click opens their requests."""
    if not found:
        return
    st.subheader("Who explains it", anchor=False)
    titles = {each["measure"]: changes.title(each) for each in found}
    measure = st.selectbox(
        "Change", [*titles], key=MEASURE, bind="query-params", format_func=lambda each: titles.get(each, each)
    )
    change = next((each for each in found if each["measure"] == measure), found[0])
    amount = "%.3f s" if change["measure"] in changes.OF_A_REQUEST else TENTHS
    tables.table(
        changes.rows(change, report["engine_names"] | report["tenant_names"]),
        key=f"changed_{change['measure']}",
        links=changes.links(change, asked.after),
        ids=[(each["dimension"], each["group"]) for each in change["groups"]],
        note=f"{changes.unit(change)} Click a row to see its requests.",
        formats={
            "Before": number_column("before", format=amount),
            "After": number_column("after", format=amount),
            "Share of the change": number_column("share of the change", format="%.1f %%"),
        },
    )


picker.heading("What changed")
chosen = picker.current()
# What is over does not change.
st.fragment(page, run_every=EVERY_S if chosen.relative else None)(ask_for_ranges(chosen))
