"""The page's address: it holds what the page shows, and each choice is written into it.

A browser reports its address with every run, and fragments run every two seconds; so a browser that lags behind reports an
address older than the last choice. The session therefore keeps the address, and those that it replaced, until the browser
reports the newest. A step back in the browser's history also reports an older address, and Streamlit marks it as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import streamlit as st

from kvtrail.dashboard.views.context import is_step_of_history, page_shown, this_run

ADDRESS = "address"
"""The session's key for it."""
Query = dict[str, list[str]]


@dataclass
class _Address:
    page: str
    query: Query
    run: object = None
    """The run in which it was last reconciled with the browser's."""
    older: list[Query] = field(default_factory=list)
    """The queries replaced since the browser last reported the newest."""


def query() -> dict[str, str]:
    """The query; the last value of each name."""
    return {name: found[-1] for name, found in _current().query.items()}


def values(name: str) -> list[str]:
    """All values of a name in the query."""
    return _current().query.get(name, [])


def is_behind() -> bool:
    """Whether the browser still has an older address."""
    return bool(_current().older)


def change(values: Mapping[str, str]) -> None:
    """Change the query; an empty value removes its name."""
    kept = {name: found for name, found in _current().query.items() if name not in values}
    replace({**kept, **{name: value for name, value in values.items() if value}})


def replace(values: Mapping[str, str | Iterable[str]]) -> None:
    """Replace the query, in one step of the browser's history."""
    address = _current()
    query = {name: [found] if isinstance(found, str) else list(found) for name, found in values.items()}
    if query != address.query:
        address.older.append(address.query)
        address.query = query
        reported = _reported()
        # In one call, so that it is one step; and only the differences, since Streamlit rejects writes to what `bind` wrote.
        st.query_params.update(
            {name: query.get(name, []) for name in {**reported, **query} if query.get(name) != reported.get(name)}
        )


def _current() -> _Address:
    """The address, reconciled with the browser's once a run, before the run writes into it."""
    address: _Address | None = st.session_state.get(ADDRESS)
    if address is not None and address.run is this_run():
        return address
    reported = _reported()
    if address is None or address.page != page_shown() or reported not in address.older or is_step_of_history():
        address = st.session_state[ADDRESS] = _Address(page_shown(), reported)
    address.run = this_run()
    return address


def _reported() -> Query:
    """The query as Streamlit has it: the browser's, with this run's changes."""
    return {name: found for name in st.query_params if (found := st.query_params.get_all(name))}
