"""Tensors in memory that client and server share, free of HTTP and gRPC: both edges use one table of one server.

A request's way: the edge takes a lease from the table (`table`), reads its inputs through it (`lease`), asks the core,
writes its outputs through it, and ends the lease with the response. `regions` counts who uses which region, `system`
and `cuda` touch the memory. Source: Triton's system and CUDA shared memory extensions.
Entry point: `protocol.shared_memory.table.SharedMemoryTable`.
"""
