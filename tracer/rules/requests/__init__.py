"""Rules about a request as a whole: it is admitted, makes progress, and is not ended by a failing call."""
