"""What more, or less, memory would have been worth: hit tokens as a function of a store's capacity."""
