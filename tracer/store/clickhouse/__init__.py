"""The store of a fleet: ClickHouse, where any number of tracers write and any number of apis read.

Spans are in the tables of the OpenTelemetry Collector's ClickHouse exporter, so that whatever reads those reads them; all
else is beside them in tables of our own. Every table is idempotent by its key: what is written twice is there once.
"""
