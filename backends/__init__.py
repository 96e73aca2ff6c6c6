"""The `Backend` interface, its registry, and one module or folder per framework."""
