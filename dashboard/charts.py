"""Charts of windows of time: findings, and where tokens came from. Pure, and named like those of `figures`.

Times are Unix milliseconds, shown in UTC as everywhere on the pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from kvtrail.dashboard import worth
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.figures import AMBER, BLUE, GREEN, GREY, PINK, RED, VIOLET, Chart
from kvtrail.dashboard.found import SEVERITIES, trend_rows
from kvtrail.dashboard.wording import SEVERITY_COLORS

_COLORS = {"red": RED, "orange": AMBER, "yellow": "#c9a400", "gray": GREY}
_TIERS = [GREEN, VIOLET, AMBER, PINK, "#0ea5b7", "#7c8f3a"]
"""Colours of the connector's tiers; vLLM's own cache is blue, and what was computed grey."""
_DARKER = {"wrong output": "#b91c1c", "leak": "#a16207"}
"""Of two severities that have the same colour as badges, the second one's here."""
HEIGHT = 180
DAY_MS = 24 * 3600 * 1000
LABELS = 130


def findings_chart(trend: Row) -> Chart:
    """Findings over the window, stacked by severity with the worst at the bottom."""
    return _over_time(
        trend_rows(trend),
        name="findings",
        of=("severity:N", SEVERITIES, [_DARKER.get(s, _COLORS[SEVERITY_COLORS[s]]) for s in SEVERITIES]),
        what=alt.Y(
            "findings:Q", stack="zero", title=None, axis=alt.Axis(format=",d", tickMinStep=1, tickCount=4, minExtent=40)
        ),
        tooltip=["time:N", "severity:N", "findings:Q"],
        window=(trend["since_ns"], trend["until_ns"]),
    )


def sources_chart(efficiency: Row) -> Chart:
    """Where the tokens of the admitted requests came from, over the window."""
    return _over_time(
        worth.time_rows(efficiency),
        name="sources",
        of=("source:N", worth.sources(efficiency), _source_colors(efficiency)),
        what=alt.Y("tokens:Q", stack="zero", title=None, axis=alt.Axis(format=".3~s", tickCount=4, minExtent=40)),
        tooltip=["time:N", "source:N", "said:N"],
        window=(efficiency["since_ns"], efficiency["until_ns"]),
    )


def epochs_chart(efficiency: Row) -> Chart:
    """The shares of the same sources by preemption epoch, a bar each."""
    rows = worth.epoch_rows(efficiency)
    epochs = [name for name in worth.EPOCHS.values() if any(row["epoch"] == name for row in rows)]
    axis = alt.Axis(minExtent=LABELS, maxExtent=LABELS, labelLimit=LABELS)
    base = alt.Chart(_data(rows, "epochs")).encode(
        x=alt.X("tokens:Q", stack="normalize", title=None, axis=alt.Axis(format=".0%", tickCount=5)),
        y=alt.Y("epoch:N", sort=epochs, title=None, axis=axis),
        color=_color("source:N", worth.sources(efficiency), _source_colors(efficiency), legend=None),
        order="order:Q",
        tooltip=["epoch:N", "source:N", alt.Tooltip("said:N", title="tokens")],
    )
    return alt.layer(base.mark_bar(height=18)).properties(height=34 * max(1, len(epochs)) + 34)


def _over_time(
    rows: Sequence[Row],
    *,
    name: str,
    of: tuple[str, list[str], list[str]],
    what: alt.Y,
    tooltip: list[str],
    window: tuple[int, int],
) -> Chart:
    """Stacked bars over the window."""
    domain = [at_ns // 10**6 for at_ns in window]
    days = domain[1] - domain[0] > 2 * DAY_MS
    axis = alt.Axis(format="%b %d" if days else "%H:%M", tickCount=7, grid=False)
    x = alt.X("at:T", title=None, scale=alt.Scale(type="utc", domain=domain), axis=axis)
    field, names, colors = of
    base = alt.Chart(_data(rows, name)).encode(
        x=x, x2="to:T", y=what, color=_color(field, names, colors, legend=_legend()), order="order:Q", tooltip=tooltip
    )
    return alt.layer(base.mark_bar(orient="vertical", clip=True)).properties(height=HEIGHT)


def _color(field: str, names: list[str], colors: list[str], *, legend: alt.Legend | None) -> alt.Color:
    return alt.Color(field, title=None, sort=names, scale=alt.Scale(domain=names, range=colors), legend=legend)


def _legend() -> alt.Legend:
    return alt.Legend(orient="top", symbolType="square", labelLimit=220)


def _source_colors(efficiency: Row) -> list[str]:
    tiers = len(worth.sources(efficiency)) - 2
    return [BLUE, *(_TIERS[n % len(_TIERS)] for n in range(tiers)), "#a3a8b1"]


def _data(rows: Sequence[Row], name: str) -> Any:
    return alt.InlineData(values=list(rows), name=name)
