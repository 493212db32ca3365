"""The pages in Streamlit: they query the tracer and draw what `content` computes from its answer.

`overview`, `requests`, `findings`, `savings` and `request` are the pages. The other modules are parts of a page, named after
what they draw, or serve several pages. The folder is not named `pages`, because Streamlit would list it automatically.
"""
