"""Whether an engine is alive: its recorders, its launches, and how they ended. Pure: no I/O, no clock."""
