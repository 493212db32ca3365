"""Going to another page as by a link: one step of the browser's history.

`st.switch_page` makes two, the first of which is this page with the other's address: one would have to go back twice. A
link to the page that is shown already changes nothing but the address: there it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import streamlit as st

from kvtrail.dashboard.views import address
from kvtrail.dashboard.views.invisible import script
from kvtrail.dashboard.views.links import link


def follow(page: str, query: Mapping[str, str]) -> None:
    """Put a link where nobody sees it, and have the browser click it."""
    if urlsplit(st.context.url or "").path.rpartition("/")[2] == page:
        address.replace(query)
        st.rerun()
    with st.container(key="follow"):
        link(page, page, query=query)
        script("follow")(key="follow_clicker")
