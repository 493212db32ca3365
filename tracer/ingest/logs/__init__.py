"""Importers: the log of a server that no recorder watched, read as the events that it shows.

A log is an incomplete witness. What it prints becomes an event of the vocabulary; what it does not print stays unknown,
and each request's numbering begins at 1, so the detector knows that something before it is missing. `docs/logs-and-traces.md`
says which line becomes what.
"""
