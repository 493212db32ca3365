"""kvtrail: an audit trail for KV-cache offload in vLLM.

`kvtrail.connector` runs inside vLLM, `kvtrail.tracer` beside it, `kvtrail.dashboard` in front of it.
"""

__version__ = "0.1.0"
