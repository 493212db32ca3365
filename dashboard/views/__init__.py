"""The pages, one a file, as Streamlit draws them: they ask the tracer and show what `content` makes of its answer.

`shared` has what several pages use. The folder is not named `pages`, which Streamlit would list on its own.
"""
