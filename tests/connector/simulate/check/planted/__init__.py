"""A small host cache as an author would write it, and bugs planted in it: what `kvtrail check` has to find on its own."""
