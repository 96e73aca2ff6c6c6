"""Codec of jobs: what `trioton.Jobs/Create` asks for, as the server knows it. Pure.

The requests are cut out of the message before it is parsed, so that their tensors stay views of the received bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from protocol.errors import InvalidArgument, ServerError
from protocol.grpc.codec.infer import decode_request, parse_request
from protocol.grpc.codec.messages import parse
from protocol.grpc.codec.wire import cut_field
from protocol.jobs.admission import refuse_placement, refuse_sequence
from protocol.messages import Buffer, InferenceRequest
from protocol.proto import message_class

# As over HTTP.
MAX_ITEMS = 10_000
MAX_METADATA = 16
MAX_TEXT = 512
_REQUESTS, _REQUEST = 1, 1  # field numbers


class ListedRequest(NamedTuple):
    request: InferenceRequest
    custom_id: str


class WantedJob(NamedTuple):
    """`message` is the CreateJobRequest without its requests."""

    requests: Sequence[ListedRequest]
    message: Any

    @property
    def timeout(self) -> float | None:
        """In seconds. Raises InvalidArgument."""
        if not self.message.HasField("timeout"):
            return None
        seconds: float = self.message.timeout.seconds + self.message.timeout.nanos / 1e9
        if seconds <= 0:
            raise InvalidArgument(f"'timeout': expected more than 0 seconds, got {seconds:g}")
        return seconds


def decode_job(data: memoryview) -> WantedJob:
    """Raises InvalidArgument, which names the request that is wrong."""
    cut = cut_field(data, _REQUESTS)
    if cut is None:  # not plain, or of very many requests
        message: Any = parse(message_class("trioton.CreateJobRequest"), data)
        listed: Sequence[Buffer] = [each.SerializeToString() for each in message.requests]
        message.ClearField("requests")
    else:
        message, listed = parse(message_class("trioton.CreateJobRequest"), cut[0]), cut[1]
    if not 1 <= len(listed) <= MAX_ITEMS:
        raise InvalidArgument(f"'requests': expected 1 to {MAX_ITEMS}, got {len(listed)}")
    _check_metadata(message.metadata)
    if len(message.request_id) > MAX_TEXT:
        raise InvalidArgument(f"'request_id': expected at most {MAX_TEXT} characters, got {len(message.request_id)}")
    return WantedJob([_listed(index, each) for index, each in enumerate(listed)], message)


def _check_metadata(metadata: Any) -> None:
    texts = [*metadata.keys(), *metadata.values()]
    if len(metadata) > MAX_METADATA or any(len(text) > MAX_TEXT for text in texts):
        raise InvalidArgument(
            f"'metadata': expected at most {MAX_METADATA} texts by name, none of more than {MAX_TEXT} characters"
        )


def _listed(index: int, data: Buffer) -> ListedRequest:
    try:
        custom_id, serialized = _request_of(data)
        if len(custom_id) > MAX_TEXT:
            raise InvalidArgument(f"'custom_id': expected at most {MAX_TEXT} characters, got {len(custom_id)}")
        decoded = decode_request(parse_request(serialized))
        refuse_placement(decoded.placement)
        refuse_sequence(decoded.request)
    except ServerError as error:
        error.message = f"requests[{index}]: {error.message}"
        raise
    return ListedRequest(decoded.request, custom_id)


def _request_of(data: Buffer) -> tuple[str, memoryview]:
    job_request = message_class("trioton.JobRequest")
    cut = cut_field(memoryview(data), _REQUEST)
    if cut is None or len(cut[1]) != 1:  # a message in parts, as protobuf allows it, is put together by its parser
        message: Any = parse(job_request, bytes(data))
        return message.custom_id, memoryview(message.request.SerializeToString())
    rest: Any = parse(job_request, cut[0])
    return rest.custom_id, cut[1][0]
