"""Tests of the face: settings, flags, log, tables, metrics, the server as a whole."""
