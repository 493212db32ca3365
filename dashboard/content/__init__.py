"""What the pages show, without Streamlit: answers of the tracer's API in; table rows, charts and sentences out.

A module is named after the page that it serves; the others serve several pages.
"""
