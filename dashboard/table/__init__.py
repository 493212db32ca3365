"""Tables with links as rows: a Streamlit component of plain JavaScript and CSS, without a build step.

In: rows, columns and links. Out: the link of the row that was clicked. Streamlit's own table reports a click late and by row
number, and drops it if the table has been replaced in the meantime; here a click carries the link under the pointer.
"""
