"""The core: the object that both edges call, and the requests in flight."""
