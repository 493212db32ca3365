"""The page of a tracer without requests: the address for spans, and commands to copy that send some."""

from __future__ import annotations

import os
import time

import streamlit as st

from kvtrail.dashboard.client import Row
from kvtrail.dashboard.command import TOKEN_VARIABLE
from kvtrail.dashboard.content import fleet, overview
from kvtrail.dashboard.views.answers import tracer


def welcome(health: Row) -> None:
    """The address for spans, and how to begin."""
    url = tracer().url
    st.subheader("No requests yet: the tracer listens", anchor=False)
    st.caption(fleet.tracer_status(health, url=url, now_ns=time.time_ns()))
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.markdown("**Trace an engine.** Spans go to this address, over HTTP:")
        st.code(url, language=None)
        st.markdown("Any connector is traced, under its own name. Replace `MODEL`, and the connector by yours:")
        wants_token = bool(os.environ.get(TOKEN_VARIABLE))
        st.code(overview.engine_settings(url, wants_token=wants_token), language=None, wrap_lines=True)
        st.caption(
            "From another machine, use this one's name in the address (`kvtrail serve --host` admits other machines). The"
            " first request appears here within seconds, without a reload."
        )
    with right:
        st.markdown("**No GPU?** A demo drives a real engine on the CPU, with a tracer and a dashboard of its own:")
        st.code(overview.DEMO, language=None, wrap_lines=True)
        st.caption(
            "It uses other ports than this tracer and this dashboard, and prints the address of its own dashboard."
        )
