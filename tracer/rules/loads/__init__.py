"""Rules about loads and hand-offs: their range, their end, and the effects of failed ones."""
