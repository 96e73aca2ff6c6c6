"""Sequence batching: stateful sequences of requests, each bound to a slot of one model instance."""
