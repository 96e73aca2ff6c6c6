"""Synchronization primitives for one waiting task, cheaper than Trio's own."""
