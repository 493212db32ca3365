"""Rules about what a connector stores, under which key, and what it evicts or locks."""
