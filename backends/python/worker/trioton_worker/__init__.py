"""The worker's own modules, under a name that no model's module should have.

`lifeline` ties the process to its server, `connection` carries `frames`, `serve` is the loop: it has `loader` import
the model (`hiding` keeps the server out of its sight) and `batch` turn frames into `requests` and `tensors` and back.
"""
