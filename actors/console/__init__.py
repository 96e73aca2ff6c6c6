"""The live console: samples the server once a second while somebody looks, and keeps the last 15 minutes."""
