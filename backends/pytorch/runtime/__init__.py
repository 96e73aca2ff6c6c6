"""The program of `runtime: "model.py"` for the backend `pytorch`, run by workers of the python backend."""
