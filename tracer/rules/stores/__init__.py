"""Rules about a connector's stores, their keys, and its evictions."""
