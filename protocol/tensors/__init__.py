"""Tensors in memory other than a message's: on devices, in shared memory, through DLPack."""
