"""The wire between server and worker: frames, the channel that carries them, and the shared memory beside it."""
