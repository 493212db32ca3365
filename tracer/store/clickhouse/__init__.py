"""The store of a fleet: ClickHouse, with any number of tracers that write and any number of APIs that read.

Spans are in the tables of the OpenTelemetry Collector's ClickHouse exporter, so that its readers can read them; all
other data is in kvtrail's own tables. Every table is idempotent by its key: a repeated write makes no duplicates.
"""
