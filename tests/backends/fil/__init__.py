"""Tests of the fil backend, on forests that are trained on the spot."""
