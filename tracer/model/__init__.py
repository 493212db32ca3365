"""What is concluded from events: findings, causes, outcomes, names of engines, and the words for all of them.

Pure data and functions. The rooms below it, the connector and the dashboard share it.
"""
