"""The job store for several servers that comes with the server: in Redis, by scripts that run there."""
