"""What was in a known connector's store, one file each."""
