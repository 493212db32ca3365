"""The dashboard: the tracer's HTTP API in, pages in the browser out. It reads nothing else.

`views` draws the pages, `content` computes their contents, `live` is the canvas of the lanes, `table` tables with links as
rows, `browser` styles and scripts; `client` calls the API.
"""
