"""The canvas of the lanes: a Streamlit component of plain JavaScript, HTML and CSS, without a build step.

In: the tracer's lanes, and the view. Out: the view that the user chose, and the clicked request.
"""
