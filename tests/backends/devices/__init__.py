"""Tests of what backends have in common on devices."""
