"""Connections to the core's gRPC edge, by the clients in whose name they were opened: calls out, responses in."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

import h2.events
import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from protocol.grpc.call.headers import Header
from protocol.messages import Buffer
from protocol.reactor.transport import PlainWire
from protocol.sync.wakeup import WaitingTasks, Wakeup

# Opens a connection in the name of the client of that address.
Open: TypeAlias = Callable[[str], Awaitable[trio.SocketStream]]

IDLE_SECONDS = 5.0
_RECEIVE_SIZE = 256 * 1024
# Of a response that its client has not taken: then the core waits.
_STREAM_WINDOW = 1 << 20
_LARGEST_WINDOW = 2**31 - 1
_DEFAULT_WINDOW = 65535
_LARGEST_FRAME = 1 << 20


class UpstreamLost(Exception):
    """The core's edge is gone, or has reset the call."""


class UpstreamCall:
    """One call, opened by `Upstream.open`; to be closed in any case."""

    def __init__(self, upstream: Upstream, stream_id: int) -> None:
        self.id = stream_id
        self.trailers: Sequence[Header] | None = None
        self.failure: UpstreamLost | None = None
        self._upstream = upstream
        self._data: deque[tuple[bytes, int]] = deque()
        self._changed = Wakeup()

    async def send(self, parts: Sequence[Buffer]) -> None:
        """Waits while the core takes no more. Raises UpstreamLost."""
        await self._upstream.send(self, b"".join(parts))

    def end(self) -> None:
        """There are no more messages."""
        self._upstream.end(self)

    async def receive(self) -> bytes:
        """More of the response's messages, none where its `trailers` have come. Raises UpstreamLost."""
        while not self._data:
            if self.trailers is not None:
                return b""
            if self.failure is not None:
                raise self.failure
            await self._changed.wait()
        data, size = self._data.popleft()
        self._upstream.acknowledge(self, size)
        return data

    def close(self) -> None:
        """It is given up, where it has not ended."""
        self._upstream.close_call(self)

    # What the connection tells.

    def note_data(self, data: bytes, size: int) -> None:
        self._data.append((data, size))
        self._changed.wake()

    def note_end(self, trailers: Sequence[Header]) -> None:
        self.trailers = trailers
        self._changed.wake()

    def note_failure(self, reason: str) -> None:
        if self.trailers is None and self.failure is None:
            self.failure = UpstreamLost(reason)
            self._changed.wake()


class Upstream:
    """One connection, with any number of calls. `run` reads it."""

    def __init__(self, client: str, stream: trio.SocketStream) -> None:
        self.client = client
        self.is_lost = False
        self.idle_since = trio.current_time()
        self._wire = PlainWire(stream)
        config = H2Configuration(
            client_side=True, header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
        )
        self._h2 = H2Connection(config)
        self._calls: dict[int, UpstreamCall] = {}
        self._has_output = Wakeup()
        self._windows = WaitingTasks()
        self._h2.local_settings[SettingCodes.INITIAL_WINDOW_SIZE] = _STREAM_WINDOW
        self._h2.local_settings[SettingCodes.MAX_FRAME_SIZE] = _LARGEST_FRAME
        self._h2.local_settings[SettingCodes.ENABLE_PUSH] = 0
        self._h2.local_settings.acknowledge()
        self._h2.max_inbound_frame_size = _LARGEST_FRAME  # as told, from the first frame on
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_LARGEST_WINDOW - _DEFAULT_WINDOW)

    @property
    def call_count(self) -> int:
        return len(self._calls)

    async def run(self) -> None:
        """Until the connection ends, or is cancelled; it is closed then, and its calls have failed."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                while data := await self._wire.receive(_RECEIVE_SIZE):
                    for event in self._h2.receive_data(data):
                        self._take(event)
                    self._has_output.wake()
                nursery.cancel_scope.cancel()
        except* ProtocolError:
            pass
        finally:
            self._lose("the connection to the core is lost")

    def close(self) -> None:
        """`run` ends."""
        self._wire.abort()

    def open(self, headers: Sequence[Header]) -> UpstreamCall:
        """Begin a call. Raises UpstreamLost."""
        if self.is_lost:
            raise UpstreamLost("the connection to the core is lost")
        stream_id = self._h2.get_next_available_stream_id()
        self._h2.send_headers(stream_id, headers)
        call = self._calls[stream_id] = UpstreamCall(self, stream_id)
        self._has_output.wake()
        return call

    async def send(self, call: UpstreamCall, data: bytes) -> None:
        """Raises UpstreamLost."""
        view = memoryview(data)
        while view:
            if call.failure is not None:
                raise call.failure
            if call.trailers is not None:  # it has ended early, and reads no more
                return
            try:
                window = self._h2.local_flow_control_window(call.id)
                size = min(len(view), window, self._h2.max_outbound_frame_size)
                if size > 0:
                    self._h2.send_data(call.id, bytes(view[:size]))
            except ProtocolError as error:
                raise UpstreamLost(str(error)) from None
            if size > 0:
                view = view[size:]
                self._has_output.wake()
            else:
                await self._windows.wait()

    def end(self, call: UpstreamCall) -> None:
        if call.trailers is None and call.failure is None:
            try:
                self._h2.end_stream(call.id)
            except ProtocolError as error:
                call.note_failure(str(error))
            self._has_output.wake()

    def acknowledge(self, call: UpstreamCall, size: int) -> None:
        if size and not self.is_lost:
            try:
                self._h2.acknowledge_received_data(size, call.id)
            except ProtocolError:  # it is reset
                return
            self._has_output.wake()

    def close_call(self, call: UpstreamCall) -> None:
        if self._calls.pop(call.id, None) is None:
            return
        if call.trailers is None and call.failure is None:
            with suppress(ProtocolError):
                self._h2.reset_stream(call.id, ErrorCodes.CANCEL)
            self._has_output.wake()
        self.idle_since = trio.current_time()

    async def _write(self) -> None:
        while True:
            while data := self._h2.data_to_send():
                if not await self._wire.send(data, math.inf, lambda: None):
                    return  # the reader sees it
            await self._has_output.wait()

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived():
                if event.stream_ended is not None:  # trailers alone
                    self._end(event.stream_id, event.headers)
            case h2.events.DataReceived():
                call = self._calls.get(event.stream_id)
                if call is not None:
                    call.note_data(event.data, event.flow_controlled_length)
                elif event.flow_controlled_length:
                    self._h2.increment_flow_control_window(event.flow_controlled_length)
            case h2.events.TrailersReceived():
                self._end(event.stream_id, event.headers)
            case h2.events.StreamEnded():
                self._fail(event.stream_id, "the response has ended without a status")
            case h2.events.StreamReset():
                self._fail(event.stream_id, "the call was reset")
                self._windows.wake_all()
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                self._windows.wake_all()
            case h2.events.ConnectionTerminated():
                self._lose("the core takes no more calls")

    def _end(self, stream_id: int, headers: Sequence[Header]) -> None:
        if (call := self._calls.get(stream_id)) is not None:
            call.note_end([(name, value) for name, value in headers])
            self._windows.wake_all()

    def _fail(self, stream_id: int, reason: str) -> None:
        if (call := self._calls.get(stream_id)) is not None:
            call.note_failure(reason)

    def _lose(self, reason: str) -> None:
        self.is_lost = True
        for call in self._calls.values():
            call.note_failure(reason)
        self._windows.wake_all()
        self._wire.abort()


class Upstreams:
    """Those of one edge, one for each client."""

    def __init__(self, open_one: Open, on_call: Callable[[], None] = lambda: None) -> None:
        """`on_call` is called for each call."""
        self._open = open_one
        self._on_call = on_call
        self._of_clients: dict[str, Upstream] = {}
        self._opening: dict[str, trio.Lock] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Until cancelled; closes those without calls after a while."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            while True:
                await trio.sleep(IDLE_SECONDS / 2)
                idle_since = trio.current_time() - IDLE_SECONDS
                for upstream in [*self._of_clients.values()]:
                    if not upstream.call_count and upstream.idle_since < idle_since:
                        upstream.close()

    async def call(self, client: str, headers: Sequence[Header]) -> UpstreamCall:
        """Begin a call of that client. Raises UpstreamLost."""
        self._on_call()
        upstream = self._of_clients.get(client)
        if upstream is None or upstream.is_lost:
            upstream = await self._connected(client)
        return upstream.open(headers)

    async def _connected(self, client: str) -> Upstream:
        """One connection, also where several calls come at the same time."""
        lock = self._opening.setdefault(client, trio.Lock())
        try:
            async with lock:
                upstream = self._of_clients.get(client)
                if upstream is not None and not upstream.is_lost:
                    return upstream
                if self._nursery is None:
                    raise UpstreamLost("the edge has not begun")
                try:
                    upstream = Upstream(client, await self._open(client))
                except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
                    raise UpstreamLost(f"no connection to the core: {error}") from None
                self._of_clients[client] = upstream
                self._nursery.start_soon(self._run, upstream)
                return upstream
        finally:
            if not lock.statistics().tasks_waiting:
                self._opening.pop(client, None)

    async def _run(self, upstream: Upstream) -> None:
        try:
            await upstream.run()
        finally:
            if self._of_clients.get(upstream.client) is upstream:
                del self._of_clients[upstream.client]
