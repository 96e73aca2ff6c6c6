"""What is counted and timed: statistics of model versions, latencies, and metrics that models define."""
