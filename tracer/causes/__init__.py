"""Why each token of a prompt was a hit or none.

In: the events of one recorder on the scheduler's side, in their order, and the gaps between them. Out: for each admission of
a request the parts of its prompt, each with its cause (`model.causes`), the cache that is meant, and the event that explains
it.

`cache_model` holds what was reported of one cache, change by change; `attribution` gives each block its cause by what is
known at one moment;
`causes` follows the requests of an engine. Pure and bounded. What was not reported is `unknown`, and never something else.
"""
