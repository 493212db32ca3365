"""What the offload did with tokens, lookups, bytes and time, summed up from facts. Pure: no I/O, no clock."""
