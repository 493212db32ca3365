"""Charts on a page that refreshes."""

from __future__ import annotations

from typing import Any, cast

import altair as alt
import streamlit as st
from altair.utils import schemapi

from kvtrail.dashboard.content import trends
from kvtrail.dashboard.views.context import is_dark

# Altair would check each part of a chart against its schema, twice, at every refresh: half of the time of a page with charts.
# The tests do it once.
schemapi.disable_debug_mode()


def draw_chart(chart: alt.TopLevelMixin, *, key: str) -> None:
    """Draw a chart in the current container; `key` keeps its place on the page."""
    st.altair_chart(cast("Any", _Unchecked(chart)), key=key)


class _Unchecked:
    """A chart as Streamlit needs it."""

    def __init__(self, chart: alt.TopLevelMixin) -> None:
        self._chart = chart

    def to_dict(self) -> dict[str, Any]:
        """The chart in Vega-Lite's words."""
        return trends.readable(trends.spec(self._chart), dark=is_dark())
