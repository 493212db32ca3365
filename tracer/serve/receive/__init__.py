"""From a socket to an acknowledgement: receivers and their bounds, and the pipeline that judges and stores a batch."""
