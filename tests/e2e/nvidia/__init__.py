"""NVIDIA's tools, unchanged, against a server: opt-in, by variables that name them; see docs/nvidia-tools.md."""
