"""The HTTP API: one file for each group of routes, and what their answers add to what is stored."""
