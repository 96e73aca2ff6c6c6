"""Access log of a ModelStreamInfer call: each of its requests has a line, in place of the call."""

from __future__ import annotations

from functools import partial

from protocol.grpc.call.access import error_text, status_word
from protocol.grpc.call.stream import Stream
from protocol.grpc.codec.infer import RequestNames
from protocol.grpc.inference.streamed_request import StreamedRequest
from protocol.log.access_log import AccessLog, Ended
from protocol.log.call_origin import StreamedOrigin


class StreamAccess:
    def __init__(self, access_log: AccessLog, stream: Stream, origin: StreamedOrigin) -> None:
        self._access_log = access_log
        self._stream = stream
        self._origin = origin

    def begin(self, request: StreamedRequest, data: bytes | memoryview) -> None:
        """It was read."""
        access_log = self._access_log
        if access_log.is_on:
            self._stream.is_unlogged = True
            request.bytes_in = len(data)
            request.record = access_log.begin()

    def end(self, request: StreamedRequest, *, is_cancelled: bool = False) -> None:
        """Write the line of a request that has ended, if it is to have one."""
        access_log = self._access_log
        if not access_log.is_on or request.is_logged:
            return
        request.is_logged = True
        is_cancelled = is_cancelled and request.error is None
        is_failed = request.error is not None or is_cancelled
        access_log.end(request.record, is_failed, partial(self._ended, request, is_cancelled=is_cancelled))

    def _ended(self, request: StreamedRequest, *, is_cancelled: bool) -> Ended:
        names = request.names or RequestNames("", "", "")
        return Ended(
            "grpc",
            "ModelStreamInfer",
            self._stream.method,
            status_word(request.error, is_cancelled=is_cancelled),
            self._origin.tags(names.id),
            own_id=names.id,
            model=names.model_name,
            version=names.model_version,
            client=self._stream.peer,
            bytes_in=request.bytes_in,
            bytes_out=request.bytes_out,
            is_cancelled=is_cancelled,
            error=error_text(request.error),
            started_ns=request.read_ns if request.record is None else 0,
        )
