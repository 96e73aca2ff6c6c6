"""The HTTP side of the live console."""
