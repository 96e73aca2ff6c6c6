"""End to end: a real server process, real models, NVIDIA's own clients."""
