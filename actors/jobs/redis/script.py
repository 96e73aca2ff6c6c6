"""The script that all calls of the Redis job store are made by: each call is one run of it, whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import TypeAlias

# In this order: each uses those before it.
_PARTS = ("records", "moves", "jobs", "runs", "sources", "deliveries", "batches", "run")

Argument: TypeAlias = bytes | str | int | float


def script_text() -> str:
    folder = files(__package__) / "scripts"
    return "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in _PARTS)


SCRIPT = script_text()
SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()


def key_prefix(name: str) -> str:
    """Of all keys of a store. The braces put them into one slot of a cluster."""
    return f"trioton:{{{name}}}:"


def encoded(argument: Argument) -> bytes | int | float:
    """Half a character, which JSON may have, cannot be kept."""
    return argument.encode("utf-8", "replace") if isinstance(argument, str) else argument


def command(
    prefix: str, name: str, nonce: str, server: str, arguments: Sequence[Argument]
) -> list[bytes | int | float]:
    """A call as Redis is sent it."""
    whole: Sequence[Argument] = ["EVALSHA", SHA, 1, prefix, name, nonce, server, *arguments]
    return [encoded(each) for each in whole]
