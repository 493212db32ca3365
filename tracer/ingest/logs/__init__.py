"""Importers: read the log of a server without a recorder as events.

A log shows only some of the events. Facts that it does not print stay unknown. Each request's numbering begins at 1, so that
the detector knows that earlier events are missing. `docs/logs-and-traces.md` lists the lines and their events.
"""
