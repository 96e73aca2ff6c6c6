"""Response store: what is kept of responses, by owner, within a limit of bytes and of age. Pure.

A response belongs to the key that made it: for another one it does not exist. Where there is no room, the owner that
has the most gives up its oldest, so that nobody drives out what others keep.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice

from protocol.responses.event_log import EventLog

# What a response costs beside its bytes, about.
_OVERHEAD = 1024
# No call gives up more than so many, or what this part of the limit holds: it would hold the server's loop.
_MOST_EXPIRED = 64
_PART_OF_ONE = 16


@dataclass(slots=True, eq=False)
class KeptResponse:
    """One response.

    Attributes:
        items: its input as JSON, with what came before in the conversation.
        answer: the response object as JSON.
        log: its events, where it runs by itself and they are wanted.
        is_running: it is not complete, and stays until it is.
        is_background: it runs, or has run, by itself.
    """

    id: str
    owner: str
    items: bytes
    answer: bytes
    log: EventLog | None = None
    is_running: bool = False
    is_background: bool = False
    kept_at: float = 0.0
    counted: int = field(default=0, init=False)

    @property
    def size(self) -> int:
        return _OVERHEAD + len(self.items) + len(self.answer) + (0 if self.log is None else self.log.size)


class ResponseStore:
    """Attributes:
    limit: bytes of all responses together.
    max_age: seconds.
    size: bytes that are held.
    """

    def __init__(self, limit: int, max_age: float) -> None:
        self.limit = limit
        self.max_age = max_age
        self.size = 0
        self._owners: dict[str, OrderedDict[str, KeptResponse]] = {}  # each in the order in which they were kept
        self._sizes: dict[str, int] = {}

    @property
    def limit_of_one(self) -> int:
        return self.limit // _PART_OF_ONE

    def keep(self, response: KeptResponse, now: float) -> bool:
        """Returns whether it is small enough to be kept."""
        self.expire(now)
        if response.size > self.limit_of_one:
            return False
        response.kept_at = now
        self._owners.setdefault(response.owner, OrderedDict())[response.id] = response
        self.recount(response)
        return True

    def find(self, owner: str, response_id: str, now: float) -> KeptResponse | None:
        self.expire(now)
        found = self._find(owner, response_id)
        return None if found is None or self._is_expired(found, now) else found

    def remove(self, response: KeptResponse) -> None:
        """Once; one that is not kept any more is none to remove."""
        own = self._owners.get(response.owner)
        if own is None or own.pop(response.id, None) is None:
            return
        self._count(response, -response.counted)
        if not own:
            del self._owners[response.owner], self._sizes[response.owner]

    def recount(self, response: KeptResponse) -> None:
        """Its size has changed. Others are given up for it, and then its oldest events."""
        if self._find(response.owner, response.id) is not response:
            return
        self._count(response, response.size - response.counted)
        while self.size > self.limit and (oldest := self._oldest(response)) is not None:
            self.remove(oldest)
        if self.size > self.limit and response.log is not None:
            response.log.shrink(max(response.log.size - (self.size - self.limit), 0))
            self._count(response, response.size - response.counted)

    def expire(self, now: float) -> None:
        """Remove some of those that are too old, if there are any."""
        left = _MOST_EXPIRED
        for owner in list(self._owners):
            for response in list(islice(self._owners[owner].values(), left)):
                if self._is_expired(response, now):
                    self.remove(response)
                    left -= 1
                elif not response.is_running:
                    break

    def _find(self, owner: str, response_id: str) -> KeptResponse | None:
        own = self._owners.get(owner)
        return None if own is None else own.get(response_id)

    def _is_expired(self, response: KeptResponse, now: float) -> bool:
        return not response.is_running and response.kept_at + self.max_age <= now

    def _count(self, response: KeptResponse, more: int) -> None:
        response.counted += more
        self.size += more
        self._sizes[response.owner] = self._sizes.get(response.owner, 0) + more

    def _oldest(self, but: KeptResponse) -> KeptResponse | None:
        """That of the owner that has the most, and has one that is complete."""
        for owner in sorted(self._sizes, key=self._sizes.__getitem__, reverse=True):
            for response in self._owners[owner].values():
                if not response.is_running and response is not but:
                    return response
        return None
