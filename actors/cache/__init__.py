"""The response cache: its interface, its registry, and one module for each implementation."""
