"""`trioton batch`: runs a model over all rows of a file, without a server; it goes on where it was killed."""
