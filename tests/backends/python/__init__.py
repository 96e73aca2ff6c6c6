"""Tests of `backends.python`, most with real worker processes and `model.py` files written for the test."""
