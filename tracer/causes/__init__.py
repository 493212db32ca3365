"""Why each token of a prompt was a hit or a miss.

In: the events of one recorder on the scheduler's side, in order, and the gaps between them. Out: for each admission of
a request the parts of its prompt, each with its cause (`model.causes`), its cache, and the event that explains
it.

`cache_model` holds the reported changes of one cache; `attribution` gives each block its cause from the known state at one
moment; `causes` tracks the requests of an engine. Pure and bounded. Unreported facts are `unknown`, never guessed.
"""
