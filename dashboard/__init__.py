"""The dashboard: the tracer's HTTP API in, pages in the browser out. It reads nothing else.

`views` draws the pages, `content` computes their contents, `live` is the live page's canvas, `table` the tables
with links as rows, `client` calls the API.
"""
