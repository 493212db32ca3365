"""The Streamlit entry: the pages, of which it runs the one that the address names."""

from pathlib import Path

import streamlit as st

st.set_page_config(page_title="kvtrail", layout="wide")
st.html(Path(__file__).with_name("style.css"))
st.navigation(
    [
        st.Page("views/live.py", title="Live", default=True),
        st.Page("views/overview.py", title="Overview", url_path="overview"),
        st.Page("views/requests.py", title="Requests", url_path="requests"),
        st.Page("views/findings.py", title="Findings", url_path="findings"),
        st.Page("views/efficiency.py", title="Efficiency", url_path="efficiency"),
        st.Page("views/fleet.py", title="Fleet", url_path="fleet"),
        # Reached by links only: without an id in the address they have nothing to show.
        st.Page("views/request.py", title="Request", url_path="request", visibility="hidden"),
        st.Page("views/compare.py", title="Compare", url_path="compare", visibility="hidden"),
        st.Page("views/replay.py", title="Replay", url_path="replay", visibility="hidden"),
        st.Page("views/runbook.py", title="Runbook", url_path="runbook", visibility="hidden"),
    ],
    position="top",
).run()
