"""Servers under Ray Serve, on a real cluster of two nodes; where Ray is installed, see docs/deploy/ray.md."""
