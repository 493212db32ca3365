"""The dashboard: live request timelines in the browser, read from the tracer's HTTP api and from nowhere else."""
