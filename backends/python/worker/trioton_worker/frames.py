"""Frame format of the socket between server and worker. Shared by both sides; no I/O.

    frame   = prefix, column, schemas, head, padding, body
    prefix    MAGIC, the kind, and the lengths of the other four in bytes
    column    64-bit signed integers in the machine's byte order: how many requests have which schema
    schemas   what requests or responses have in common: JSON texts, one after the other
    head      a JSON object in UTF-8, or nothing where it has no fields
    padding   so that the body begins at a multiple of 16
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
    TRIM        give free memory back to the system
                                                     LOG       a message of the model; no answer
                                                     COROUTINE a batch goes on as a coroutine; no answer

Batches are numbered by the server, calls by the worker. Several batches may be in the worker, if it said so (DONE of
INITIALIZE, or the first COROUTINE) or if their requests are answered by response senders.

A schema is a list with `[name, datatype number, [dimensions...]]` for each tensor. Both sides cache schemas by their
text, so that a usual one is neither written nor parsed a second time. Requests or responses that follow each other and
have the same schema are a run. A run is in the column: the length of its schema's text, their count, and for each of
them the sizes of its BYTES tensors; others have the size that datatype and dimensions say. The tensors lie in this
order in the body, or in a shared memory segment, each at the next multiple of ALIGNMENT.

In front of its runs the column of EXECUTE has the batch's number and the slots of its segments: that of its inputs,
NO_SLOT where they are in the body, and that for its outputs, NO_SLOT where there is none yet, or BESIDE. That of
EXECUTED has the batch's number, whether the model keeps inputs, how many bytes of outputs are in their segment, 0 where
they are in the body or have all stayed among the inputs, and how many have, with two places each; in place of the
length of a schema it has ERROR where the head's `errors` has the request's own, LATER where its response sender
answers, RESCHEDULED where it is to run again. For a decoupled model it has no runs. RESPONSE, INFER, STREAM and RETURN
have one run of one request or response, or none where there is no response.

Flow control: a response sender has at most UNTAKEN_RESPONSES responses, and about UNTAKEN_BYTES of them, on the way
without a CREDIT, so that a slow client stops its own request's sender and nothing else. In the same way the server
sends no more than UNTAKEN_RESPONSES frames of a stream without TAKEN.

Shared memory: segments in slots, made and bounded by the server: in INPUT_SLOTS those that only the server writes, in
OUTPUT_SLOTS those that only the worker writes. A batch has one of each, if it is the only one in the worker; BESIDE
says that there are others. New segments come as file descriptors with an EXECUTE frame, in place of what was in their
slots; its head's `segments` says in which. There are two of each, so that one can be read while the other is written
to: the server sends outputs from where they are, and gives no batch a segment that is still read. Where the model keeps
inputs after `execute`, the server never writes to that segment again. The worker answers `wanted` (bytes) where the
outputs did not fit their segment and came in the body. A large output that lies among the inputs already, because the
model returns what it got, is not copied: the column has where it would begin in its segment, and where it does in that
of the inputs, which the server has read before it writes there again. Where the model keeps inputs, and so may write to
them, all outputs are in their own segment, whatever these places say.

Whichever way they cross, the inputs in a worker are never more than the limit that INITIALIZE says in `byte_limit`, nor
are the outputs of one EXECUTED, or the tensors of one RESPONSE, INFER, STREAM or RETURN.
"""

from __future__ import annotations

import struct
from typing import Callable, Dict

MAGIC = b"TrWk"
PREFIX = struct.Struct("=4sIQIIQ")  # MAGIC, kind, lengths of column, schemas, head and body

INITIALIZE, COMPLETE, EXECUTE, FINALIZE, CANCEL, CREDIT, STREAM, RETURN, CHECK, TRIM = range(1, 11)
DONE, FAILED, EXECUTED, LOG, RESPONSE, INFER, TAKEN, FORGET, CALL, METRIC, CHECKED, COROUTINE = range(16, 28)
# All kinds that a worker may send; an engine's worker has some of its own (`trioton_engine.frames`).
FROM_WORKER = range(DONE, 32)

# In the column of EXECUTE in place of a slot.
NO_SLOT, BESIDE = 0, -1
INPUT_SLOTS, OUTPUT_SLOTS = range(1, 3), range(3, 5)
# In the column of EXECUTED in place of the length of a schema.
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
# Outputs of at least so many bytes are worth a look at where they are.
PLACED_BYTE_SIZE = 65536

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
# The schemas that either side remembers, and the longest text of one.
MOST_SCHEMAS = 1024
LONGEST_KNOWN_SCHEMA = 4096


class _Columns(Dict[int, Callable[..., bytes]]):
    """Makes a column of numbers, by how many there are: `COLUMNS[len(numbers)](*numbers)`. To parse a format each time
    would cost as much as all else."""

    def __missing__(self, count: int) -> Callable[..., bytes]:
        made = struct.Struct(f"{count}q").pack
        if len(self) < _MOST_COLUMNS:
            self[count] = made
        return made


_MOST_COLUMNS = 256
COLUMNS = _Columns()

_PADDINGS = tuple(bytes(size) for size in range(16))


def pack(kind: int, head: bytes, column: bytes = b"", schemas: bytes = b"", body_size: int = 0) -> bytes:
    """The frame up to its body."""
    column_size, schemas_size, head_size = len(column), len(schemas), len(head)
    prefix = PREFIX.pack(MAGIC, kind, column_size, schemas_size, head_size, body_size)
    return b"".join((prefix, column, schemas, head, _PADDINGS[-(column_size + schemas_size + head_size) % 16]))


def beyond_limit(what: str, size: int, limit: int) -> str:
    """The error's text where tensors are more than may cross at a time."""
    return (
        f"{what} {size} bytes, but at most {limit} bytes may cross between server and worker at a time "
        f"(--backend-config=python,{LIMIT_NAME}=…)"
    )


def aligned(size: int) -> int:
    """The next multiple of ALIGNMENT."""
    return (size + ALIGNMENT - 1) & -ALIGNMENT
