"""Hit tokens as a function of a store's capacity: its miss-ratio curve."""
