"""What crosses the socket between server and worker. Both sides read this file; it does no I/O.

    frame   = prefix, column, head, body
    prefix    MAGIC, the kind, and the lengths of the other three in bytes
    column    64-bit signed integers in the machine's byte order: tensors (JSON would be slow)
    head      a JSON object in UTF-8, padded with spaces so that the body begins at a multiple of 16
    body      the tensors' bytes, where they do not cross in shared memory

Either side may send at any time; frames are told apart by their kind, and by the numbers in their heads.

    server → worker                                  worker → server
    INITIALIZE  load the model, make the object      DONE or FAILED
    COMPLETE    run auto_complete_config             DONE (with the configuration) or FAILED
    FINALIZE    finalize the model, then exit        DONE or FAILED
    EXECUTE     one batch                            EXECUTED (also where the batch has failed)
    CANCEL      the caller of a request has gone
                                                     RESPONSE  of a request's response sender
    CREDIT      so many RESPONSEs were passed on
                                                     INFER     run another model (BLS)
    STREAM      one response of several              TAKEN     so many STREAMs were looked at
    RETURN      the last, or only, answer            FORGET    nobody waits for this call any more
                                                     CALL      something else of the server; RETURN answers it
                                                     METRIC    change a metric; no answer
    CHECK       run is_ready                         CHECKED
                                                     LOG       a message of the model; no answer

Batches are numbered by the server, calls by the worker. Several batches may be in the worker, if it said so (DONE of
INITIALIZE) or if their requests are answered by response senders.

The column of EXECUTE holds for each request its number of inputs and then for each input
`name index, datatype number, offset, byte size, rank, dimensions...`. That of EXECUTED holds for each request its
number of outputs and then the same for each output, or ERROR where the head's `errors` has the request's own, LATER
where its response sender answers, RESCHEDULED where it is to run again; for a decoupled model it is empty. RESPONSE,
INFER, STREAM and RETURN describe one request or response in the same way. Offsets count from the begin of the body, or
of the shared memory segment where the head says `in_segment` (EXECUTE) or `shared`, the number of bytes there
(EXECUTED).

Flow control: a response sender has at most UNTAKEN_RESPONSES responses, and about UNTAKEN_BYTES of them, on the way
without a CREDIT, so that a slow client stops its own request's sender and nothing else. In the same way the server
sends no more than UNTAKEN_RESPONSES frames of a stream without TAKEN.

Shared memory: up to two segments, made and bounded by the server: one that only the server writes (inputs), one that
only the worker writes (outputs). They belong to the only batch that is in the worker: EXECUTE says with `is_beside`
that there are others. New segments come as file descriptors with an EXECUTE frame; its head's `segments` says which.
The worker answers `kept` where the model holds on to inputs after `execute`; the server then never writes to that
segment again. It answers `wanted` (bytes) where the outputs did not fit their segment and came in the body.

Whichever way they cross, the inputs in a worker are never more than the limit that INITIALIZE says in `byte_limit`, nor
are the outputs of one EXECUTED, or the tensors of one RESPONSE, INFER, STREAM or RETURN.
"""

from __future__ import annotations

import struct

MAGIC = b"TrWk"
PREFIX = struct.Struct("=4sIQQQ")  # MAGIC, kind, column length, head length, body length

INITIALIZE, COMPLETE, EXECUTE, FINALIZE, CANCEL, CREDIT, STREAM, RETURN, CHECK = range(1, 10)
DONE, FAILED, EXECUTED, LOG, RESPONSE, INFER, TAKEN, FORGET, CALL, METRIC, CHECKED = range(16, 27)

# In the column of EXECUTED in place of a number of outputs.
ERROR, LATER, RESCHEDULED = -1, -2, -3
# What a RESPONSE says about those that follow it: there may be some, it is the last one, or the sender was dropped
# without a last one.
OPEN, FINAL, DROPPED = range(3)
# In TAKEN: the rest of the stream is of no interest, and is not to be sent.
ALL = -1

UNTAKEN_RESPONSES = 32
UNTAKEN_BYTES = 1 << 21
# Calls of other models by one worker at a time; more wait in the worker. Backend setting `thread-pool-size`.
DEFAULT_CALLS = 32

# Tensors begin at multiples of this many bytes, counted from the begin of their body or segment.
ALIGNMENT = 64
# Batches up to this size cross in the frame: as fast at this size, and nothing to keep apart.
INLINE_BYTE_SIZE = 16384

# The backend setting that bounds each direction; the text that a model's error has.
LIMIT_NAME = "shm-limit-byte-size"

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
METRIC_KINDS = ("counter", "gauge", "histogram")

DATATYPE_BYTES = 13
DATATYPE_BF16 = 14


def pack(kind: int, head: bytes, column: bytes = b"", body_size: int = 0) -> bytes:
    """The frame up to its body."""
    padding = -(len(column) + len(head)) % 16  # the prefix is 32 bytes long
    prefix = PREFIX.pack(MAGIC, kind, len(column), len(head) + padding, body_size)
    return b"".join((prefix, column, head, b" " * padding))


def beyond_limit(what: str, size: int, limit: int) -> str:
    """The error's text where tensors are more than may cross at a time."""
    return (
        f"{what} {size} bytes, but at most {limit} bytes may cross between server and worker at a time "
        f"(--backend-config=python,{LIMIT_NAME}=…)"
    )


def aligned(size: int) -> int:
    """The next multiple of ALIGNMENT."""
    return (size + ALIGNMENT - 1) & -ALIGNMENT
