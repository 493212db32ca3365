"""Rules about KV blocks: their holders, their release, and their use in plans and allocations."""
