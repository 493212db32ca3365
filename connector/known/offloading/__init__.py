"""vLLM's native OffloadingConnector."""
