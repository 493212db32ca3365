"""The rules: a module with the code of an invariant, and a Markdown page beside it with its words.

In: events, and the ledger as it was before them. Out: judgements. Pure: no I/O but the pages, no clock. To add a rule, see
CONTRIBUTING.md.
"""
