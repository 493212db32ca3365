"""The Streamlit entry point: navigation, and the page in the URL."""

import os
from pathlib import Path

import streamlit as st

from kvtrail.dashboard import palette
from kvtrail.dashboard.command import LOGIN_VARIABLE
from kvtrail.dashboard.login import LOGOUT
from kvtrail.dashboard.scripts import invisible
from kvtrail.dashboard.views import address
from kvtrail.dashboard.views.links import arrive

PAGES = {
    "Overview": st.Page("views/overview.py", title="Overview", default=True),
    **{
        title: st.Page(f"views/{title.lower()}.py", title=title, url_path=title.lower())
        for title in ("Requests", "Findings", "Savings")
    },
}
REQUEST = st.Page("views/request.py", title="Request", url_path="request")
"""Reached only by links: its URL needs an id."""
EVERY_S = 2
STYLES = ("browser/style.css", "table/table.css")


def navigation() -> None:
    """Links to the pages, with the current time range. Streamlit's own navigation would drop it."""
    time_range = {name: value for name, value in address.query().items() if name in ("from", "to")}
    with st.container(key="nav", horizontal=True, gap="small", vertical_alignment="center"):
        for title, each in PAGES.items():
            st.page_link(each, label=title, query_params=time_range)
        if os.environ.get(LOGIN_VARIABLE):
            st.html(f'<a href="{LOGOUT}" target="_self">Log out</a>')


st.set_page_config(page_title="kvtrail", layout="wide")
styles = [palette.style(), *((Path(__file__).parent / name).read_text() for name in STYLES)]
st.html(f"<style>{' '.join(styles)}</style>")
page = st.navigation([*PAGES.values(), REQUEST], position="hidden")
arrive(page.url_path or "overview")
# Only the lanes change their range without rerunning the whole page.
st.fragment(navigation, run_every=EVERY_S if address.query().get("view") == "lanes" else None)()
with st.container(key="history"):  # keeps late pages out of the history
    invisible("history")(key="history_keeper")
page.run()
