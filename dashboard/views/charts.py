"""Charts on a page that refreshes, and charts on which an area can be drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt
import streamlit as st
from altair.utils import schemapi

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import charts
from kvtrail.dashboard.content.legend import of_colours
from kvtrail.dashboard.views import address, picker

# Altair would check each part of a chart against its schema, twice, at every refresh: half of the time of a page with charts.
# The tests do it once.
schemapi.disable_debug_mode()


def is_dark() -> bool:
    """Whether the page has the dark theme. Charts need their colours when they are built."""
    return bool(st.context.theme.type == "dark")


def draw_chart(chart: alt.TopLevelMixin, *, key: str) -> None:
    """Draw a chart in the current container; `key` keeps its place on the page."""
    spec = charts.readable(charts.spec(chart), dark=is_dark())
    _draw(None, spec, key=key)


def chart_to_draw_on(
    chart: charts.Chart,
    *,
    key: str,
    selection: str,
    area: Callable[[Mapping[str, Any]], Mapping[str, str] | None],
    markers: Sequence[Row] = (),
) -> None:
    """A chart with markers, on which an area can be drawn, the `selection` of that name. `area` gives the URL parameters that
    show it; None if it shows nothing.

    The rows are sent beside the spec, so that a refresh with other rows does not redraw the chart under the pointer.
    """
    if (shown := st.session_state.pop(f"{key}_drawn", None)) is not None:
        address.change(shown)
        st.rerun()
    # The drawn area is cleared once it is shown: the next range has another chart.
    chart_key = f"{key} {picker.current().field()}"
    spec, rows = charts.spec_and_rows(chart)
    spec = charts.readable(charts.with_markers(spec, markers, dark=is_dark()), dark=is_dark())

    def drawn() -> None:
        st.session_state[f"{key}_drawn"] = area(st.session_state[chart_key]["selection"].get(selection, {}))

    _draw(rows, spec, key=chart_key, on_select=drawn, selection_mode=selection)


def sources_chart(answer: Row, markers: Sequence[Row]) -> None:
    """The tokens of `/api/efficiency` by source over time, with their legend."""
    st.html(of_colours(charts.source_colours(answer, dark=is_dark())))
    chart_over_time(charts.sources_over_time(answer, dark=is_dark()), markers, key="sources")


def findings_chart(trend: Row, markers: Sequence[Row]) -> None:
    """The findings of `/api/findings/trend` by severity over time, with their legend."""
    st.html(of_colours(charts.severity_colours(trend, dark=is_dark())))
    chart_over_time(charts.findings_over_time(trend, dark=is_dark()), markers, key="findings")


def chart_over_time(chart: charts.Chart, markers: Sequence[Row], *, key: str) -> None:
    """A chart over time, with markers. A range drawn along it becomes the page's."""

    def area(selection: Mapping[str, Any]) -> dict[str, str] | None:
        ends = selection.get(charts.MOMENT)
        narrowed = picker.current().narrowed(*ends) if ends else None
        return None if narrowed is None else narrowed.address

    chart_to_draw_on(chart, key=key, selection=charts.BRUSH, area=area, markers=markers)


def _draw(rows: Any, spec: dict[str, Any], *, key: str, **options: Any) -> None:
    """A chart in a reserved space: otherwise elements below it would jump when it is drawn."""
    with st.container(height=spec["height"], border=False, key=f"chart_{key}"):
        st.vega_lite_chart(rows, spec, key=key, **options)
