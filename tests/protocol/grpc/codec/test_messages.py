"""Messages to bytes and back, of each kind, and bytes that are none."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from protocol.errors import InvalidArgument, PayloadTooLarge
from protocol.grpc.codec.messages import MAX_DATACLASS_SIZE, Codec
from protocol.grpc.generated import inference as pb
from protocol.proto import message_class

CODEC = Codec()
Load: Any = message_class("inference.RepositoryModelLoadRequest")


def test_dataclasses_go_both_ways() -> None:
    message = pb.ModelReadyRequest(name="m", version="3")
    encoded = CODEC.encode(message, pb.ModelReadyRequest)
    assert encoded == b"\x0a\x01m\x12\x013"
    assert CODEC.decode(encoded, pb.ModelReadyRequest) == message


def test_google_messages_go_both_ways() -> None:
    message = Load(model_name="m")
    assert CODEC.decode(CODEC.encode(message, Load), Load) == message


def test_serialized_messages_pass_as_they_are() -> None:
    assert CODEC.encode(b"abc", bytes) == b"abc"
    view = CODEC.decode(b"abc", memoryview)
    assert isinstance(view, memoryview)
    assert view.tobytes() == b"abc"


def test_a_message_of_another_type_is_a_defect() -> None:
    with pytest.raises(TypeError, match="expected a message of type ServerLiveResponse, got ServerReadyResponse"):
        CODEC.encode(pb.ServerReadyResponse(), pb.ServerLiveResponse)


BROKEN = [b"\x0a", b"\x0a\x05ab", b"\xff" * 11, b"\x0a\x02\xff\xfe", b"\x0b\x01", b"\x0c", b"\0\0"]


@pytest.mark.parametrize("data", BROKEN)
@pytest.mark.parametrize("message_type", [pb.ModelReadyRequest, Load])
def test_broken_messages_are_the_clients_mistake(message_type: type, data: bytes) -> None:
    """Also those that betterproto2 by itself would take for something shorter."""
    with pytest.raises(InvalidArgument, match=rf"the request of {len(data)} bytes is not a valid inference\.\w+"):
        CODEC.decode(data, message_type)


def test_unknown_fields_are_skipped() -> None:
    message = CODEC.decode(b"\xf8\x07\x01\x0a\x01m", pb.ModelReadyRequest)
    assert message == pb.ModelReadyRequest(name="m")
    assert message.SerializeToString() == b"\x0a\x01m"
    assert CODEC.decode(b"\xf8\x07\x01\x12\x01m", Load).model_name == "m"


def test_a_dataclass_has_a_size_limit() -> None:
    data = pb.ModelReadyRequest(name="m" * MAX_DATACLASS_SIZE).SerializeToString()
    with pytest.raises(PayloadTooLarge, match=f"ModelReadyRequest of {len(data)} bytes is larger than the limit"):
        CODEC.decode(data, pb.ModelReadyRequest)


def test_the_first_message_imports_nothing() -> None:
    """That would hold the event loop: betterproto2 asks pydantic of each message, where it is installed."""
    code = """
import sys
from protocol.grpc.codec.messages import Codec
from protocol.grpc.generated import inference
from protocol.proto import our_pool
our_pool()  # the service asks for it when it is made
before = set(sys.modules)
Codec().decode(b"", inference.ModelStatisticsRequest)
bytes(inference.ModelStatisticsResponse([inference.ModelStatistics(name="m")]))
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""
