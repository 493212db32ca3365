"""The sidecar process: receivers, the pipeline from a batch to its acknowledgement, the HTTP api, and metrics.

In: OTLP over gRPC and HTTP. Out: stored spans and findings, JSON for the dashboard, series for Prometheus.
"""
