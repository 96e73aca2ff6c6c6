"""Webhooks: signed messages to receivers that clients name, as Standard Webhooks says."""
