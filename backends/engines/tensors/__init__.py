"""Requests to engines: their tensors and parameters, in the names of several projects."""
