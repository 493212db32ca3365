"""What was computed although a cache had held it: the most expensive prefixes, who pays, and the requests."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import waste
from kvtrail.dashboard.table.columns import Column, Moments
from kvtrail.dashboard.views import picker
from kvtrail.dashboard.views.links import link, request_query
from kvtrail.dashboard.views.tables import number_column, table


def wasted(answer: Row, filters: Mapping[str, str], narrowed: Mapping[str, str]) -> None:
    """The section, or what it is `narrowed` down to by a click on one of its rows."""
    st.subheader("Computed although it had been held", anchor=False)
    given = {"on" if name == "engine" else name: value for name, value in filters.items() if value}
    query = {**picker.current().address, **given}
    if narrowed:
        link("savings", waste.narrowed_to(answer, narrowed), icon="filter_alt_off", query=query)
    st.markdown(waste.sentence(answer))
    if not answer["whole"]["tokens"]:
        return
    if narrowed:
        _requests(answer)
    _prefixes(answer, {**query, **narrowed})
    _places(answer, {**query, **narrowed})
    if not narrowed:
        _requests(answer)


def _prefixes(answer: Row, query: Mapping[str, str]) -> None:
    """The most expensive prefixes."""
    rows = waste.prefix_rows(answer)
    if not rows:
        st.caption("By which prefix is not known: the hashes of these prompts' blocks are not recorded.")
        return
    table(
        rows,
        key="waste_prefixes",
        links=waste.narrowed(answer, waste.PREFIX, query),
        note="The most expensive prefixes, each named by the hash of the first block that was lost: prompts that begin alike"
        " and lose the same beginning share it. Click a row to see its requests.",
        most_rows=8,
        formats=_formats() | {"Latest": Moments()},
    )


def _places(answer: Row, query: Mapping[str, str]) -> None:
    """Who computes it again: tenants (there may be many) beside all else."""
    left, right = st.columns(2, gap="medium")
    for kind, heading in waste.KINDS.items():
        with left if kind == "tenant" else right:
            ids = [tuple(each.get(name) for name in (kind, "tier")) for each in answer[f"by_{kind}"]]
            table(
                waste.rows(answer, kind),
                key=f"waste_{kind}",
                links=waste.narrowed(answer, kind, query),
                ids=ids,
                note=heading,
                most_rows=8,
                formats=_formats(),
            )


def _requests(answer: Row) -> None:
    """The requests that computed most again."""
    table(
        waste.request_rows(answer),
        key="waste_requests",
        links=[("request", request_query(each)) for each in answer["requests"]],
        ids=[(each["engine"], each["request"], each["prefix"]) for each in answer["requests"]],
        note="The requests that computed most again. Click a row to open one, with the cause of each part of its prompt.",
        formats=_formats() | {"Admitted": Moments()},
        most_rows=15,
    )


def _formats() -> dict[str, Column]:
    """The columns of numbers."""
    return {
        "Tokens": number_column("wasted tokens"),
        "Share": number_column("share of the waste", format="%.1f %%"),
        "Prefill": number_column("wasted prefill", format="%.2f s"),
        "Admissions": number_column("admission"),
        "Lost from token": number_column("lost from token"),
    }
