"""A recorded history run again against a connector: the same calls on its scheduler's side, and what it answers this time.

`calls` makes calls of a history, `environment` the connector and what it had in its store, `stand_ins` vLLM's objects;
`runner` makes the calls, `judge` says which rules the answers break, and `rerun` does it all.
"""
