"""The pages, one per file, in Streamlit: they query the tracer and draw what `content` computes from its answer.

Modules that are not pages serve several pages. The folder is not named `pages`, which Streamlit would list by itself.
"""
