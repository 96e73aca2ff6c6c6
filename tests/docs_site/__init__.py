"""Tests of what builds the documentation's site (`docs/site/`)."""
