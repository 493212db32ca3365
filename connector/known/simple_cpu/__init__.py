"""vLLM's SimpleCPUOffloadConnector."""
