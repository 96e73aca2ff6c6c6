"""What runs in an engine's worker process: its program, the engine port, and the engines that come with the server.

Beside the worker of the Python backend, whose connection and lifeline it shares, it imports nothing of the server.
"""
