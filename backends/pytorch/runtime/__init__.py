"""The Python runtime of the pytorch backend (`runtime: "model.py"`), run by workers of the Python backend."""
