"""Media types that announce binary tensors: which header lengths they give, and what is refused."""

from __future__ import annotations

import pytest

from protocol.errors import InvalidArgument
from protocol.http.codec.binary_type import SAGEMAKER_BINARY, VERTEX_AI_BINARY

SAGEMAKER = b"application/vnd.sagemaker-triton.binary+json;json-header-size="


@pytest.mark.parametrize(
    ("content_type", "length"),
    [
        (None, None),
        (b"application/json", None),
        (b"application/vnd.vertex-ai-triton.binary+json;json-header-size=3", None),  # another platform's
        (SAGEMAKER + b"0", 0),
        (SAGEMAKER + b"7", 7),
        (SAGEMAKER + b" 7 ; charset=utf-8", 7),
        (SAGEMAKER.replace(b"application", b"Application") + b"7", 7),
    ],
)
def test_the_length_of_the_json(content_type: bytes | None, length: int | None) -> None:
    assert SAGEMAKER_BINARY.header_length(content_type, 10) == length
    assert SAGEMAKER_BINARY.is_in(content_type) is (length is not None)


@pytest.mark.parametrize(
    ("content_type", "text"),
    [
        (b"x " + SAGEMAKER + b"7", f"expect MIME type for binary data starts with '{SAGEMAKER.decode()}', got: x app"),
        (SAGEMAKER, "Unable to parse inference header size, got: $"),
        (SAGEMAKER + b"seven", "Unable to parse inference header size, got: seven"),
        (SAGEMAKER + b"7x", "Unable to parse inference header size, got: 7x"),
        (SAGEMAKER + b"2147483648", "inference header size, value is out of range .* got: 2147483648"),
        (SAGEMAKER + b"-1", r"inference header size should be in range \(0, 10\), got: -1"),
        (SAGEMAKER + b"11", r"inference header size should be in range \(0, 10\), got: 11"),
    ],
)
def test_what_is_refused(content_type: bytes, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text.replace("+", r"\+")):
        SAGEMAKER_BINARY.header_length(content_type, 10)


def test_what_is_written_can_be_read() -> None:
    assert VERTEX_AI_BINARY.header_length(VERTEX_AI_BINARY.of(5), 9) == 5
