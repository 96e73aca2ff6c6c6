"""Shared memory extensions: regions that clients register, and tensors in them; independent of HTTP and gRPC.

One table per server, used by both edges. For a request the edge takes a lease from the table (`table`), reads its
inputs through it (`lease`), calls the core, writes its outputs through it, and ends the lease with the response.
`regions` counts references, `system` and `cuda` access the memory. Source: Triton's system and CUDA shared memory
extensions. Entry point: `protocol.shared_memory.table.SharedMemoryTable`.
"""
