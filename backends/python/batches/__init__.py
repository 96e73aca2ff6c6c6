"""Batches in a worker: encoding, admission, answers, and response streams."""
