"""What crosses the socket between server and worker. Both sides read this file; it does no I/O.

    frame   = prefix, column, head, body
    prefix    MAGIC, the kind, and the lengths of the other three in bytes
    column    64-bit signed integers in the machine's byte order: the tensors of a batch (JSON would be slow)
    head      a JSON object in UTF-8, padded with spaces so that the body begins at a multiple of 16
    body      the tensors' bytes, where they do not cross in shared memory

One exchange at a time: the server sends a frame, and the worker answers it with one frame. LOG frames may come from
the worker at any time; they have no answer.

    server → worker                                  worker → server
    INITIALIZE  load the model, make the object      DONE or FAILED
    COMPLETE    run auto_complete_config             DONE (with the configuration) or FAILED
    EXECUTE     one batch                            EXECUTED (also where the batch has failed)
    FINALIZE    finalize the model, then exit        DONE or FAILED

The column of EXECUTE holds for each request its number of inputs and then for each input
`name index, datatype number, offset, byte size, rank, dimensions...`; that of EXECUTED holds for each request its
number of outputs, or -1 where the head's `errors` has the request's own, and then the same for each output. Offsets
count from the begin of the body, or of the shared memory segment where the head says `in_segment` (EXECUTE) or
`shared`, the number of bytes there (EXECUTED).

Shared memory: up to two segments, made and bounded by the server: one that only the server writes (inputs), one that
only the worker writes (outputs). New segments come as file descriptors with an EXECUTE frame; its head's `segments`
says which. The worker answers `kept` where the model holds on to inputs after `execute`; the server then never writes
to that segment again. It answers `wanted` (bytes) where the outputs did not fit their segment and came in the body.
"""

from __future__ import annotations

import struct

MAGIC = b"TrWk"
PREFIX = struct.Struct("=4sIQQQ")  # MAGIC, kind, column length, head length, body length

INITIALIZE, COMPLETE, EXECUTE, FINALIZE = range(1, 5)
DONE, FAILED, EXECUTED, LOG = range(16, 20)

# Tensors begin at multiples of this many bytes, counted from the begin of their body or segment.
ALIGNMENT = 64
# Batches up to this size cross in the frame: as fast at this size, and nothing to keep apart.
INLINE_BYTE_SIZE = 16384

# Order of the codes of TRITONSERVER_Error_Code.
ERROR_KINDS = (
    "UNKNOWN",
    "INTERNAL",
    "NOT_FOUND",
    "INVALID_ARG",
    "UNAVAILABLE",
    "UNSUPPORTED",
    "ALREADY_EXISTS",
    "CANCELLED",
)
LOG_LEVELS = ("INFO", "WARNING", "ERROR", "VERBOSE")

DATATYPE_BYTES = 13
DATATYPE_BF16 = 14


def pack(kind: int, head: bytes, column: bytes = b"", body_size: int = 0) -> bytes:
    """The frame up to its body."""
    padding = -(len(column) + len(head)) % 16  # the prefix is 32 bytes long
    prefix = PREFIX.pack(MAGIC, kind, len(column), len(head) + padding, body_size)
    return b"".join((prefix, column, head, b" " * padding))


def aligned(size: int) -> int:
    """The next multiple of ALIGNMENT."""
    return (size + ALIGNMENT - 1) & -ALIGNMENT
