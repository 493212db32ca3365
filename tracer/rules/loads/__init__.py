"""Rules about loads and hand-offs: their range, their end, and what a failed one leaves behind."""
