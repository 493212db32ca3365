"""The contents of pages, without Streamlit: answers of the tracer's API in; table rows, charts and sentences out.

A module is named after its page, or after the part of a page; `request` has those of the page about one request.
"""
