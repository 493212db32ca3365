"""Rules about the whole of a request: that it is admitted, goes on, and is not ended by a failing call."""
