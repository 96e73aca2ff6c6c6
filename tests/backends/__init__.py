"""Tests of the backends' common parts; one folder per framework."""
