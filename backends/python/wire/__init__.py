"""The protocol between server and worker: frames, the socket that carries them, and shared memory for tensors."""
