"""Sequences: requests that belong together, each on the model instance that holds their state."""
