"""The live console: what it shows, and the interface that an edge reads it by."""
