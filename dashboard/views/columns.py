"""Columns that several tables have: words as coloured labels, and the glossary behind each heading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import palette
from kvtrail.dashboard.content.glossary import TERMS
from kvtrail.dashboard.content.palette import Meaning
from kvtrail.dashboard.content.requests import STATUS


def labels(meanings: Mapping[str, Meaning], *, term: str, width: int | None = None) -> Any:
    """A column whose cells are lists of words of one group of the palette."""
    return st.column_config.MultiselectColumn(
        options=[*meanings], color=[each.colour.badge for each in meanings.values()], help=TERMS[term], width=width
    )


def number(term: str, **options: Any) -> Any:
    """A column of numbers with thousands separators."""
    return st.column_config.NumberColumn(**{"format": "localized", "help": TERMS[term], **options})


def words(term: str, **options: Any) -> Any:
    """A column of text."""
    return st.column_config.TextColumn(help=TERMS[term], **options)


def request_labels() -> dict[str, Any]:
    """The columns of `content.requests.status` and of verdicts."""
    return {"Status": labels(STATUS, term="outcome"), "Verdict": labels(palette.VERDICT, term="verdict")}


def rule_columns(rows: Sequence[Row]) -> dict[str, Any]:
    """The options of a table of `content.findings.rule_rows`."""
    most = max((max(row["Trend"], default=0) for row in rows), default=0)
    return {
        "formats": {
            "Could": labels(palette.SEVERITY, term="could", width=105),
            "Did": words("did", width=125),
            "Rule": st.column_config.TextColumn(width=115),
            "Says": st.column_config.TextColumn(width=330),
            "Findings": number("finding", width=75),
            "Requests": number("requests with it", width=80),
            # One scale for all rows, so that they can be compared.
            "Trend": st.column_config.BarChartColumn(help=TERMS["trend"], width=140, y_min=0, y_max=max(1, most)),
        }
    }
