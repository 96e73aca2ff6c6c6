"""The worker program of the Python backend: everything that runs in a model's own process.

Self-contained: it imports the standard library, numpy, and nothing of the server's, so that it also runs under the
interpreter of another environment (Python 3.8 or newer). `main.py` is the program, `triton_python_backend_utils.py`
what models import, `trioton_worker` the rest. The server imports `trioton_worker.frames` from here, so that both sides
read one description of what crosses between them.
"""
