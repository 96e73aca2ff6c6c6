"""Codecs of HTTP bodies: JSON, binary tensors, raw requests, generate extension, and content codings."""
