"""Schedulers: queues of a model version whose batches go to its idle instances; batching and sequence policies."""
