"""Runner: the interface to whatever serves a worker's socket, a process, a hosted instance, or a thread of the
server."""

from __future__ import annotations

from typing import Protocol

from protocol.log.tags import TagsNow


class Runner(Protocol):
    """`noun` is what it is called in errors, `killed_text` how it has ended when the server did it."""

    noun: str
    killed_text: str

    def resident_bytes(self) -> int | None:
        """Its resident memory; None where it has ended, or that is unknown."""

    @property
    def tail(self) -> list[str]:
        """The last lines that it printed, oldest first, as far as the server gets them."""

    def exit_text(self) -> str | None:
        """How it ended; None while it runs."""

    async def wait_exit(self) -> None:
        """Sleep until it has ended. Any number of tasks may wait."""

    async def forward_output(self, tags_now: TagsNow) -> None:
        """Log what it prints, until nothing more can come, with the tags that there are when it comes. One task at a
        time."""

    async def log_last_output(self, tags_now: TagsNow) -> None:
        """Log what there still is of what it printed, now that it has ended."""

    def kill(self) -> None:
        """End it at once, as far as that is possible. Harmless when it has ended."""

    async def close(self) -> None:
        """Kill what is left, free everything. Shielded, and bounded by some seconds."""
