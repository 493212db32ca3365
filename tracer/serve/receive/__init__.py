"""Receivers with their limits, and the pipeline that judges, stores and acknowledges a batch."""
