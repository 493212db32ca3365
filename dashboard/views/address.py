"""The page's address: it says what is shown, and each choice is written into it.

A browser says with every run which address it has, and one that is behind has an older one: it has not yet been told of a
choice that was written meanwhile, while a refresh of a part of the page comes every two seconds. So the session keeps the
address, and those that it has written over, until the browser is known to have the newest. A step back in the browser's
history names an older one too, and is known by being one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import streamlit as st

from kvtrail.dashboard.views.run import is_step_of_history, page_shown, this_run

ADDRESS = "address"
"""The session's name for it."""
Query = dict[str, list[str]]


@dataclass
class _Address:
    page: str
    query: Query
    run: object = None
    """The run in which the browser was last listened to."""
    older: list[Query] = field(default_factory=list)
    """What was written over since the browser was last known to have the newest."""


def query() -> dict[str, str]:
    """The query; of names that it has more than once, the last."""
    return {name: found[-1] for name, found in _current().query.items()}


def values(name: str) -> list[str]:
    """All that the query has under a name."""
    return _current().query.get(name, [])


def is_behind() -> bool:
    """Whether the browser has an older address."""
    return bool(_current().older)


def change(values: Mapping[str, str]) -> None:
    """Change the query; an empty value takes its name out."""
    kept = {name: found for name, found in _current().query.items() if name not in values}
    replace({**kept, **{name: value for name, value in values.items() if value}})


def replace(values: Mapping[str, str | Iterable[str]]) -> None:
    """Make this the query: one step of the browser's history."""
    address = _current()
    query = {name: [found] if isinstance(found, str) else list(found) for name, found in values.items()}
    if query != address.query:
        address.older.append(address.query)
        address.query = query
        told = _told()
        # At once, so that it is one step; and only what differs, as Streamlit forbids to write what its `bind` has written.
        st.query_params.update(
            {name: query.get(name, []) for name in {**told, **query} if query.get(name) != told.get(name)}
        )


def _current() -> _Address:
    """The address. It is reconciled with the browser's once a run, before this run writes into it."""
    address: _Address | None = st.session_state.get(ADDRESS)
    if address is not None and address.run is this_run():
        return address
    told = _told()
    if address is None or address.page != page_shown() or told not in address.older or is_step_of_history():
        address = st.session_state[ADDRESS] = _Address(page_shown(), told)
    address.run = this_run()
    return address


def _told() -> Query:
    """The query as Streamlit has it: the browser's, and what this run has written."""
    return {name: found for name in st.query_params if (found := st.query_params.get_all(name))}
