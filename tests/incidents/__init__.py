"""Public incidents of drift as histories of events, and what the rules find in them."""
