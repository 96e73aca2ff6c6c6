"""The whole road: a real server process, real models, NVIDIA's own clients."""
