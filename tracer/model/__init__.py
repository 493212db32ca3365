"""Conclusions from events: findings, causes, outcomes, names of engines, and the words for all of them.

Pure data and functions. The packages that import it, the connector and the dashboard share it.
"""
