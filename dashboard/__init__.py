"""The dashboard: reads the tracer's HTTP API, and nothing else, and shows pages in the browser.

`views` draws the pages, `content` computes their contents, `live` is the canvas of the lanes, `table` has tables with links
as rows, `browser` has styles and scripts; `client` calls the API.
"""
