"""Stored files: what clients have uploaded for batches, and what batches have given. Pure."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

# Purposes, as OpenAI names them: what a client uploads, and what comes of it.
INPUT, OUTPUT = "batch", "batch_output"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file, as the store has it. Times are in seconds since the epoch.

    Attributes:
        owner: the name of the key that it belongs to; for all others it does not exist.
        name: the client's own.
        payload: by which the store reads its content.
    """

    id: str
    owner: str
    purpose: str
    name: str
    payload: str
    byte_size: int
    created: float
    expires: float


def new_file_id(now: float) -> str:
    """Ids sort by when they were made, and cannot be guessed."""
    return f"file-{int(now * 1000):012x}{secrets.token_hex(10)}"
