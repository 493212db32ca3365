"""The Streamlit entry: navigation, and the page that the address names."""

import os

import streamlit as st

from kvtrail.dashboard.command import LOGIN_VARIABLE
from kvtrail.dashboard.login import LOGOUT
from kvtrail.dashboard.scripts import invisible
from kvtrail.dashboard.views import address
from kvtrail.dashboard.views.links import forget_followed_click

PAGES = {
    "Overview": st.Page("views/overview.py", title="Overview", default=True),
    "Live": st.Page("views/live.py", title="Live", url_path="live"),
    "Requests": st.Page("views/requests.py", title="Requests", url_path="requests"),
    "Latency": st.Page("views/latency.py", title="Latency", url_path="latency"),
    "Findings": st.Page("views/findings.py", title="Findings", url_path="findings"),
    "Efficiency": st.Page("views/efficiency.py", title="Efficiency", url_path="efficiency"),
    "Fleet": st.Page("views/fleet.py", title="Fleet", url_path="fleet"),
}
# Reached by links only: most need an id in the address.
LINKED_PAGES = [
    st.Page(f"views/{name}.py", title=name.replace("_", " ").capitalize(), url_path=name)
    for name in ("request", "compare", "compare_groups", "replay", "runbook", "changes", "waste")
]
EVERY_S = 2


def navigation() -> None:
    """Links to the pages, with the current time range. Streamlit's own navigation would drop it."""
    time_range = {name: value for name, value in address.query().items() if name in ("from", "to")}
    with st.container(key="nav", horizontal=True, gap="small", vertical_alignment="center"):
        for title, each in PAGES.items():
            st.page_link(each, label=title, query_params=time_range)
        if os.environ.get(LOGIN_VARIABLE):
            st.html(f'<a href="{LOGOUT}" target="_self">Log out</a>')


st.set_page_config(page_title="kvtrail", layout="wide")
forget_followed_click()
page = st.navigation([*PAGES.values(), *LINKED_PAGES], position="hidden")
# Only the live view changes its range without a run of the whole page.
st.fragment(navigation, run_every=EVERY_S if page is PAGES["Live"] else None)()
with st.container(key="history"):  # keeps late pages out of it
    invisible("history")(key="history_keeper")
page.run()
