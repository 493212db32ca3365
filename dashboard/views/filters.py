"""Filters; the page's URL holds their choices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from kvtrail.dashboard.views import address
from kvtrail.dashboard.views.address import set_to, when_chosen

ANY = "any"


def filter_bar() -> DeltaGenerator:
    """A container for filters: one line, or three to a line on a phone."""
    return st.container(key="filters", horizontal=True, gap="small", vertical_alignment="bottom")


def choose(label: str, choices: Sequence[str], *, name: str, shown: Mapping[str, str] | None = None) -> str:
    """A filter's choice, empty for any. The URL may have a choice that does not occur in the range. `shown` maps choices to
    their texts."""
    texts = {ANY: f"Any {label.lower()}", **(shown or {})}
    options = list(dict.fromkeys([ANY, *choices, address.query().get(name, ANY)]))
    chosen = one_of(label, options, name=name, default=ANY, text=lambda option: texts.get(option, option))
    return "" if chosen == ANY else chosen


def one_of(label: str, options: Sequence[str], *, name: str, default: str, text: Callable[[str], str]) -> str:
    """The chosen option. The URL holds it, unless it is the default.

    Streamlit's `bind` would forbid links to another page with the same name in its URL.
    """
    key, change = _in_address(options, name=name, default=default)
    st.selectbox(label, options, key=key, on_change=change, format_func=text, label_visibility="collapsed")
    return str(st.session_state[key])


def switch(label: str, texts: Mapping[str, str], *, name: str) -> str:
    """The choice among a few options, side by side; the first one by default."""
    default = next(iter(texts))
    key, change = _in_address([*texts], name=name, default=default)
    st.segmented_control(
        label, [*texts], key=key, on_change=change, format_func=texts.__getitem__, label_visibility="collapsed",
        required=True, width="content",
    )  # fmt: skip
    return str(st.session_state[key] or default)


def written(label: str, *, name: str, example: str, help: str | None = None, clears: Iterable[str] = ()) -> str:
    """A text field, and its text. A change of the text `clears` these names in the URL."""
    key = f"filter_{name}"
    set_to(key, address.query().get(name, ""))

    def write() -> None:
        address.change({name: str(st.session_state[key]).strip(), **dict.fromkeys(clears, "")})

    st.text_input(
        label, key=key, on_change=when_chosen(key, write), placeholder=example, help=help, label_visibility="collapsed",
    )  # fmt: skip
    return str(st.session_state[key]).strip()


def _in_address(options: Sequence[str], *, name: str, default: str) -> tuple[str, Callable[[], None]]:
    """The key of a widget that shows a value of the URL, and the callback that writes its choice there."""
    named, key = address.query().get(name, default), f"filter_{name}"
    set_to(key, named if named in options else default)

    def write() -> None:
        chosen = st.session_state[key] or default
        address.change({name: "" if chosen == default else chosen})

    return key, when_chosen(key, write)
