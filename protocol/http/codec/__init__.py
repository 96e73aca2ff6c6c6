"""Codecs of HTTP bodies: JSON, binary tensors, raw requests, and content codings."""
