"""A torture test for connectors: random but reproducible workloads on vLLM's real scheduler, with the rules as the oracle.

`profiles` makes workloads, `subject` configures the connector, `trial` runs one and says whether it failed, `shrink` makes a
failing one small, `session` goes on until time or steps are spent, `report` writes down what came of it,
and `regression` a failure as a test.
"""
