"""The live page's canvas: a Streamlit component of plain JavaScript, HTML and CSS, without a build step.

In: the lanes that the tracer answered, and the view. Out: the view that the user has moved to, the request that was clicked.
"""
