"""Charts on a page that refreshes, and those on which a range of time can be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import altair as alt
import streamlit as st
from altair.utils import schemapi

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import charts
from kvtrail.dashboard.views import picker

# Altair would check each part of a chart against its schema, twice, at every refresh: half of the time of a page with charts.
# The tests do it once.
schemapi.disable_debug_mode()


def is_dark() -> bool:
    """Whether the page has the dark theme. Charts need their colours when they are built."""
    return bool(st.context.theme.type == "dark")


def draw_chart(chart: alt.TopLevelMixin, *, key: str) -> None:
    """Draw a chart in the current container; `key` keeps its place on the page."""
    st.altair_chart(cast("Any", _Unchecked(chart)), key=key)


def chart_over_time(chart: charts.Chart, marked: Sequence[Row], *, key: str) -> None:
    """A chart over time, with markers. A range drawn along it becomes the page's.

    The rows are sent beside the spec, so that a refresh with other rows does not redraw the chart under the pointer.
    """
    if (drawn := st.session_state.pop(f"{key}_drawn", None)) is not None:
        picker.show(drawn)
        st.rerun()
    shown = picker.current()
    # A drawn range ends once it is shown: the next range has another chart.
    chart_key = f"{key} {shown.field()}"

    def draw() -> None:
        ends = st.session_state[chart_key]["selection"].get(charts.BRUSH, {}).get(charts.MOMENT)
        if ends and (narrowed := picker.current().narrowed(*ends)) is not None:
            st.session_state[f"{key}_drawn"] = narrowed

    spec, rows = charts.spec_and_rows(chart)
    spec = charts.readable(charts.with_markers(spec, marked, dark=is_dark()), dark=is_dark())
    with st.container(key=f"over_time_{key}"):
        st.vega_lite_chart(rows, spec, key=chart_key, on_select=draw, selection_mode=charts.BRUSH)


class _Unchecked:
    """A chart as Streamlit needs it."""

    def __init__(self, chart: alt.TopLevelMixin) -> None:
        self._chart = chart

    def to_dict(self) -> dict[str, Any]:
        """The chart in Vega-Lite's words."""
        return charts.readable(charts.spec(self._chart), dark=is_dark())
