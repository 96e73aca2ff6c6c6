"""Server reflection: generic clients discover the services, without our `.proto` files.

Both names of the service are served; their messages are the same but for their package, so one set of classes reads
both. Source: gRPC's server reflection protocol, v1 and v1alpha.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import betterproto2
from google.protobuf.descriptor import FileDescriptor
from grpclib.const import Cardinality, Handler, Status

from protocol.grpc.call.stream import Stream
from protocol.grpc.generated.grpc.reflection import v1 as pb
from protocol.proto import our_pool

SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


class _NotFoundError(Exception):
    """What was asked for does not exist; the text says what."""


class ReflectionService:
    """`services` are the full names of all services of the server, those of reflection included."""

    def __init__(self, services: Sequence[str]) -> None:
        self._services = services
        self._pool = our_pool()

    def __mapping__(self) -> dict[str, Handler]:
        request, response = pb.ServerReflectionRequest, pb.ServerReflectionResponse
        handler = Handler(self._answer_all, Cardinality.STREAM_STREAM, request, response)
        return {f"/{service}/ServerReflectionInfo": handler for service in SERVICES}

    async def _answer_all(self, stream: Stream) -> None:
        sent: set[str] = set()
        async for request in stream:
            await stream.send_message(self._answer(request, sent))

    def _answer(self, request: pb.ServerReflectionRequest, sent: set[str]) -> pb.ServerReflectionResponse:
        """The answer to one question; `sent` are the files that went over this stream."""
        response = pb.ServerReflectionResponse(valid_host=request.host, original_request=request)
        kind, value = _question(request)
        try:
            match kind:
                case "file_by_filename":
                    response.file_descriptor_response = _files(self._file(value), sent)
                case "file_containing_symbol":
                    response.file_descriptor_response = _files(self._file_of_symbol(value), sent)
                case "file_containing_extension":  # our files have none
                    raise _NotFoundError(f"extension {value.extension_number} of {value.containing_type[:200]}")
                case "all_extension_numbers_of_type":
                    self._check_message(value)
                    response.all_extension_numbers_response = pb.ExtensionNumberResponse(value)
                case "list_services":
                    services = [pb.ServiceResponse(name) for name in self._services]
                    response.list_services_response = pb.ListServiceResponse(services)
                case _:
                    response.error_response = pb.ErrorResponse(Status.INVALID_ARGUMENT.value, "the request is empty")
        except _NotFoundError as error:
            response.error_response = pb.ErrorResponse(Status.NOT_FOUND.value, f"not found: {error}")
        return response

    def _file(self, name: str) -> FileDescriptor:
        try:
            return self._pool.FindFileByName(name)
        except KeyError:
            raise _NotFoundError(f"file {name[:200]}") from None

    def _file_of_symbol(self, symbol: str) -> FileDescriptor:
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            pass
        service_name, _, method = symbol.rpartition(".")  # the pool does not know methods by name
        try:
            service = self._pool.FindServiceByName(service_name)
        except KeyError:
            service = None
        if service is None or method not in service.methods_by_name:
            raise _NotFoundError(f"symbol {symbol[:200]}")
        return service.file

    def _check_message(self, name: str) -> None:
        try:
            self._pool.FindMessageTypeByName(name)
        except KeyError:
            raise _NotFoundError(f"message {name[:200]}") from None


def _question(request: pb.ServerReflectionRequest) -> tuple[str, Any]:
    return betterproto2.which_one_of(request, "message_request")


def _files(file: FileDescriptor, sent: set[str]) -> pb.FileDescriptorResponse:
    """A file after those that it imports; what was sent already is left out, but for the file itself."""
    found: list[bytes] = []
    _collect(file, sent, found)
    return pb.FileDescriptorResponse(found or [file.serialized_pb])


def _collect(file: FileDescriptor, sent: set[str], found: list[bytes]) -> None:
    if file.name in sent:
        return
    sent.add(file.name)
    for dependency in file.dependencies:
        _collect(dependency, sent, found)
    found.append(file.serialized_pb)
