"""Limits on what clients may cost: memory of requests and responses, rate of cheap frames, and counters of refusals."""
