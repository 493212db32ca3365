"""The Streamlit entry: the pages, of which it runs the one that the address names, and the way from one to another."""

import os
from pathlib import Path

import streamlit as st

from kvtrail.dashboard.command import LOGIN_VARIABLE
from kvtrail.dashboard.content import palette
from kvtrail.dashboard.login import LOGOUT
from kvtrail.dashboard.views import address
from kvtrail.dashboard.views.invisible import script

SHOWN = {
    "Overview": st.Page("views/overview.py", title="Overview", default=True),
    "Live": st.Page("views/live.py", title="Live", url_path="live"),
    "Requests": st.Page("views/requests.py", title="Requests", url_path="requests"),
    "Findings": st.Page("views/findings.py", title="Findings", url_path="findings"),
    "Efficiency": st.Page("views/efficiency.py", title="Efficiency", url_path="efficiency"),
    "Fleet": st.Page("views/fleet.py", title="Fleet", url_path="fleet"),
}
# Reached by links only: without an id in the address they have nothing to show.
REACHED = [
    st.Page(f"views/{name}.py", title=name.capitalize(), url_path=name)
    for name in ("request", "compare", "replay", "runbook")
]
EVERY_S = 2


@st.fragment(run_every=EVERY_S)
def ways() -> None:
    """Links to the pages. Streamlit's own would forget the range of time that one looks at, which may change without a run
    of the whole page."""
    timed = {name: value for name, value in address.query().items() if name in ("from", "to")}
    with st.container(key="nav", horizontal=True, gap="small", vertical_alignment="center"):
        for title, page in SHOWN.items():
            st.page_link(page, label=title, query_params=timed)
        if os.environ.get(LOGIN_VARIABLE):
            st.html(f'<a href="{LOGOUT}" target="_self">Log out</a>')


st.set_page_config(page_title="kvtrail", layout="wide")
st.html(f"<style>{palette.style()}\n{Path(__file__).with_name('style.css').read_text()}</style>")
chosen = st.navigation([*SHOWN.values(), *REACHED], position="hidden")
ways()
with st.container(key="history"):  # keeps pages that come late out of it
    script("history")(key="history_keeper")
chosen.run()
