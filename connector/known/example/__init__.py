"""vLLM's ExampleConnector."""
