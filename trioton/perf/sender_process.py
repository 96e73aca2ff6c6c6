"""Program of a sender in a process of its own (`trioton.perf.senders`): `python -m trioton.perf.sender_process`.

Standard input has a job, then an offer, then nothing (None) to end it, then the next offer …; standard output a line
for each slice. Ends with its input.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

import msgspec
import trio

from trioton.perf.caller import DataError, TargetError
from trioton.perf.generator import LocalGenerator, Offer
from trioton.perf.sender import control_of, open_sender
from trioton.perf.senders import LENGTH_BYTES, SenderJob, SenderSaid

_CHUNK = 1 << 20


class InputEnded(Exception):
    """Nobody is there any more."""


class _Input:
    def __init__(self) -> None:
        self._stream = trio.lowlevel.FdStream(0)
        self._rest = b""

    async def receive(self) -> Any:
        """The next value. Raises InputEnded."""
        size = int.from_bytes(await self._bytes(LENGTH_BYTES), "big")
        return pickle.loads(await self._bytes(size))

    async def _bytes(self, count: int) -> bytes:
        while len(self._rest) < count:
            part = await self._stream.receive_some(_CHUNK)
            if not part:
                raise InputEnded
            self._rest += part
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken


async def _run() -> None:
    received, output = _Input(), trio.lowlevel.FdStream(1)

    async def say(said: SenderSaid) -> None:
        await output.send_all(msgspec.json.encode(said) + b"\n")

    job: SenderJob = await received.receive()
    try:
        control = control_of(job.target)
        async with open_sender(job.target, job.description, job.data, control, job.part) as generator:
            await say(SenderSaid(is_ready=True))
            while True:
                await _offer(generator, await received.receive(), received, output)
                await say(SenderSaid(has_ended=True))
    except DataError as error:
        await say(SenderSaid(data_error=str(error)))
    except TargetError as error:
        await say(SenderSaid(target_error=str(error)))


async def _offer(generator: LocalGenerator, offer: Offer, received: _Input, output: trio.lowlevel.FdStream) -> None:
    """Until it is told to end."""
    async with generator.offer(offer) as slices, trio.open_nursery() as nursery:

        async def pass_on() -> None:
            async for figures in slices:
                await output.send_all(msgspec.json.encode(SenderSaid(figures=figures.to_json())) + b"\n")

        nursery.start_soon(pass_on)
        await received.receive()
        nursery.cancel_scope.cancel()


def main() -> int:
    """Answers the exit code."""
    try:
        trio.run(_run)
    except* (InputEnded, trio.BrokenResourceError):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
