"""What the offload did with tokens, lookups, bytes and time, summed up as events come. Pure: no I/O, no clock."""
