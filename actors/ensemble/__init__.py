"""Ensembles: a graph of steps, each a request to another model, run as one request."""
