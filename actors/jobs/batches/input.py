"""Reads the input of a batch from the store, and makes the items of its job, in threads, a little at a time.

A thread that works in Python shares the interpreter with the server's loop: so each is given little, and the loop may
go on between two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import trio

from protocol.jobs.batches.batch import Batch
from protocol.jobs.batches.lines import InputReader, Line, LineRequest, encode_line_request
from protocol.jobs.batches.store import BatchStore
from protocol.jobs.store import NewItem

# Bytes that are read at once, and those of them that are worked on at once.
_READ_SIZE = 256 << 10
_SLICE_SIZE = 16 << 10
# What is dropped at once.
_FREED_AT_ONCE = 500
# Items that are made at once.
_ITEMS_AT_ONCE = 250


async def read_input(store: BatchStore, batch: Batch, reader: InputReader, is_wanted: Callable[[], bool]) -> None:
    """Feed the reader, as long as the batch is wanted. Raises NotFound: the input is gone."""
    start = 0
    while is_wanted() and not reader.is_done:
        data = await store.read_file(batch.input_payload, start, _READ_SIZE)
        if not data:
            await trio.to_thread.run_sync(reader.finish)
            return
        start += len(data)
        for place in range(0, len(data), _SLICE_SIZE):
            await trio.to_thread.run_sync(reader.feed, data[place : place + _SLICE_SIZE])
    await trio.to_thread.run_sync(reader.finish)


async def items_of(batch: Batch, lines: Sequence[Line], model: str) -> list[NewItem]:
    """Those of a job that answers the lines; `model` is the core's name."""
    items: list[NewItem] = []
    for first in range(0, len(lines), _ITEMS_AT_ONCE):
        items += await trio.to_thread.run_sync(_items, batch, lines[first : first + _ITEMS_AT_ONCE], model)
    return items


async def let_go(many: list[Any]) -> None:
    """Drop what is in a long list, a little at a time: to free it all at once takes long."""
    while many:
        del many[-_FREED_AT_ONCE:]
        await trio.lowlevel.checkpoint()


def _items(batch: Batch, lines: Sequence[Line], model: str) -> list[NewItem]:
    return [
        NewItem(
            model,
            [encode_line_request(LineRequest(batch.endpoint, model, batch.input_payload, line.start, line.size))],
            line.custom_id,
        )
        for line in lines
    ]
