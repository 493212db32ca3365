"""What drives a real engine: the demo and its tiny model. Needs vLLM; the tracer never imports it."""
