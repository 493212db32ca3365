"""Rules about what a connector answered, and what it and the engine count of it."""
