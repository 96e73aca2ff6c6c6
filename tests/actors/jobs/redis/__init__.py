"""Tests of the Redis job store."""
