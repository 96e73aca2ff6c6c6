"""Tensors that are not plain bytes of a message: on devices, in shared memory, exchanged by DLPack; and
classification."""
