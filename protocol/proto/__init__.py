"""Our `.proto` files, and Google protobuf classes made from them.

`descriptors.binpb` holds the compiled descriptors (`python -m tests.generate` makes it). They live in a pool of their
own: Triton's client libraries register the same message names in protobuf's default pool, and both must be usable in
one process. The betterproto2 code made from the same files, but those in folders, is in `protocol.grpc.generated`.
"""

from __future__ import annotations

import functools
from importlib import resources

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

__all__ = ["message_class", "our_pool"]


@functools.cache
def message_class(full_name: str) -> type[Message]:
    """The class of a message: `message_class("inference.ModelConfig")`.

    Raises:
        KeyError: no `.proto` file of ours defines it.
    """
    return message_factory.GetMessageClass(our_pool().FindMessageTypeByName(full_name))


@functools.cache
def our_pool() -> descriptor_pool.DescriptorPool:
    """Everything that our `.proto` files define, and nothing else. Nobody may add to it."""
    pool = descriptor_pool.DescriptorPool()
    serialized = resources.files(__name__).joinpath("descriptors.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(serialized).file:  # each after those that it imports
        pool.Add(file)
    return pool
