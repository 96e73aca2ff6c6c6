"""Schedulers: queues of a model version, emptied into its idle instances, by batching and by sequence."""
