"""The rules: each has a module with the code of its invariant, and a Markdown page beside it with its texts.

In: events, and the ledger's state before each event. Out: judgements. Pure: no clock, and no I/O except reading the pages. To
add a rule, see CONTRIBUTING.md.
"""
