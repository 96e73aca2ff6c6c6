"""The live console."""
