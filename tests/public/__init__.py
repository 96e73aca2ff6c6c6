"""Tests of what other packages may import: `trioton.backends` and its like."""
