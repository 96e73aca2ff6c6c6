"""The worker's package, whose name no model's module should have.

`lifeline` ties the process to its server, `connection` carries `frames`, `serve` is the loop: it has `loader` import
the model (`hiding` hides the server's packages) and `batch` turn frames into `requests` and `tensors` and back.
"""
