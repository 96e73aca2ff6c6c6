"""What `trioton perf` sends: inputs that are made, read from files or captured, and sequences of them."""
