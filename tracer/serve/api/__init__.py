"""The HTTP API: one file for each group of routes, and code that adds computed fields to stored data."""
