"""The pages, one a file, and the parts that they share."""
