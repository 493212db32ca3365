"""The contents of pages, without Streamlit: converts answers of the tracer's API to table rows, charts and sentences.

A module is named after its page or a part of a page; `request` has the modules of the page about one request.
"""
