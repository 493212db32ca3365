"""One request: its account and steps, its phases, its charts, a comparison with another request, and both sides of a
hand-off."""
