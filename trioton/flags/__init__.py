"""Flags of the command line: how one is declared and read (`fields`), and the groups that `trioton.settings` joins."""
