"""The live console with a real server, and where it is installed a real browser."""
