"""The sidecar process: `receive` takes OTLP, judges and stores it, `api` and `metrics` answer.

In: OTLP over gRPC and HTTP. Out: stored spans and findings, JSON for the dashboard, series for Prometheus.
"""
