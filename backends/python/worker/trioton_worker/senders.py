"""`InferenceResponseSender`: sends responses from any thread, also after `execute` has returned."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from .arguments import UINT32, to_integer
from .connection import Head
from .errors import TritonModelException
from .frames import DROPPED, FINAL, OPEN, RESPONSE, UNTAKEN_BYTES, UNTAKEN_RESPONSES, beyond_limit
from .responses import InferenceResponse, pack_response
from .session import LiveBatch
from .switchboard import Ticket

COMPLETE_FINAL = 1  # TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Reply:
    """The way back of one request, held by the request and by its senders. When none of them is left and nothing final
    was sent, the server is told, so that the client is not left waiting."""

    __slots__ = (
        "__weakref__",
        "_batch",
        "_has_failed",
        "_index",
        "_is_closed",
        "_lock",
        "_names",
        "_sent_size",
        "_taken_size",
        "_ticket",
        "_untaken",
        "sent_count",
    )

    def __init__(self, batch: LiveBatch, index: int, names: Any) -> None:
        self._batch = batch
        self._index = index
        self._names = names
        self._lock = threading.Lock()  # one response at a time, in the order in which they came
        self._is_closed = batch.has_failed
        self._has_failed = False
        self.sent_count = 0
        self._untaken: deque[int] = deque()  # the sizes of those responses that wait for a CREDIT
        self._sent_size = 0  # changed by who sends alone, as the next one is by who reads
        self._taken_size = 0
        self._ticket: Ticket | None = None
        batch.add_reply(index, self)

    def send(self, response: InferenceResponse | None, is_final: bool) -> None:
        with self._lock:
            self._check(response, is_final)
            if not self._has_failed:  # an error was the end for the client
                self._pass_on(response, is_final)
            if is_final:  # not where it could not be packed: a sender that is dropped then ends the request
                self._is_closed = True

    def close(self) -> None:
        """The request was answered by other means."""
        self._is_closed = True

    def credit(self, count: int) -> None:
        """In the thread that reads: so many responses were passed on."""
        for _ in range(count):
            self._taken_size += self._untaken.popleft()
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._batch.session.switchboard.complete(ticket)

    def _check(self, response: InferenceResponse | None, is_final: bool) -> None:
        if response is None and not is_final:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if self._is_closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        if self._batch.session.is_decoupled:
            return
        if response is not None and self.sent_count:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send more than one response."
            )
        if response is None and not self.sent_count:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
            )

    def _pass_on(self, response: InferenceResponse | None, is_final: bool) -> None:
        if not self._batch.session.is_decoupled:
            if response is not None:
                self._send(response, FINAL)
        elif response is not None:
            self._wait_credit()
            self._has_failed = response.has_error()
            self._send(response, FINAL if is_final or self._has_failed else OPEN)
        else:
            self._send_end(FINAL)

    def _wait_credit(self) -> None:
        while not self._has_credit():
            ticket = self._ticket = Ticket()
            if self._has_credit():  # it came in this moment
                break
            self._batch.session.switchboard.wait(ticket)
            if not ticket.is_done:
                raise _no_server()

    def _has_credit(self) -> bool:
        return len(self._untaken) < UNTAKEN_RESPONSES and self._sent_size - self._taken_size < UNTAKEN_BYTES

    def _send(self, response: InferenceResponse, end: int) -> None:
        head: Head = {"batch": self._batch.number, "index": self._index, "end": end}
        session = self._batch.session
        packing = pack_response(response, self._names, head, session.schemas)
        size = 0 if packing is None else packing.size
        limit = session.byte_limit
        if size > limit:
            raise TritonModelException(beyond_limit("Unable to send response. It takes", size, limit))
        self.sent_count += 1
        self._untaken.append(size)
        self._sent_size += size
        try:
            session.connection.send(RESPONSE, head, *(() if packing is None else packing.parts()))
        except OSError:
            raise _no_server() from None

    def _send_end(self, end: int) -> None:
        head = {"batch": self._batch.number, "index": self._index, "end": end}
        self._batch.session.connection.send_from_anywhere(RESPONSE, head)

    def __del__(self) -> None:
        if self._is_closed or self._has_failed or (self.sent_count and not self._batch.session.is_decoupled):
            return
        self._send_end(DROPPED)


def _no_server() -> TritonModelException:
    return TritonModelException("Unable to send response. The server has closed its connection.")


class InferenceResponseSender:
    """Sends the responses of one request; any number for a decoupled model, exactly one for any other."""

    __slots__ = ("_batch", "_index", "_reply")

    def __init__(self, reply: Reply | None, batch: LiveBatch | None, index: int) -> None:
        self._reply = reply
        self._batch = batch
        self._index = index

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, or with TRITONSERVER_RESPONSE_COMPLETE_FINAL the last one, or only that flag.

        Waits while the client is slow to take what was sent before. Raises TritonModelException for what cannot be
        sent.
        """
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"InferenceResponseSender.send: expected an InferenceResponse, found type {type(response)}")
        if type(flags) is not int:
            flags = to_integer(flags, "InferenceResponseSender.send: flags", UINT32)
        if flags not in (0, COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if self._reply is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        self._reply.send(response, flags == COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        """Whether the client has gone; the final flag is to be sent all the same."""
        return is_cancelled(self._batch, self._index)


def is_cancelled(batch: LiveBatch | None, index: int) -> bool:
    """Whether the client of a request has gone, as far as the server has said by now."""
    if batch is None:
        return False
    if index not in batch.cancelled:
        batch.session.switchboard.look()
    return index in batch.cancelled
