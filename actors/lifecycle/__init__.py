"""The life cycle of models: repository polling, loading, version swaps, memory budget, draining and unloading."""
