"""Media types that announce binary tensors: the platforms of clouds pass no other header on.

`application/vnd.<platform>-triton.binary+json;json-header-size=<n>` stands for `Inference-Header-Content-Length: <n>`.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import InvalidArgument
from protocol.http.codec.infer import check_header_size, header_size

CONTENT_TYPE = b"content-type"


@dataclass(frozen=True, slots=True)
class BinaryType:
    """The media type of one platform; `start` is all of it but the number."""

    start: bytes

    def is_in(self, content_type: bytes | None) -> bool:
        return content_type is not None and self.start in content_type.lower()

    def of(self, length: int) -> bytes:
        """The media type of a body with so many bytes of JSON."""
        return self.start + b"%d" % length

    def header_length(self, content_type: bytes | None, body_size: int) -> int | None:
        """The length of the JSON part; None where the body is all JSON. 0 announces a raw binary request.

        Raises:
            InvalidArgument: the type does not begin the header, has no number, or none within the body.
        """
        if content_type is None or not self.is_in(content_type):
            return None
        if not content_type.lower().startswith(self.start):
            raise InvalidArgument(
                f"expect MIME type for binary data starts with '{self.start.decode()}', "
                f"got: {content_type.decode('latin-1')}"
            )
        number = content_type[len(self.start) :].partition(b";")[0]
        length = header_size(number, "inference header size")
        check_header_size(length, body_size)
        return length


SAGEMAKER_BINARY = BinaryType(b"application/vnd.sagemaker-triton.binary+json;json-header-size=")
VERTEX_AI_BINARY = BinaryType(b"application/vnd.vertex-ai-triton.binary+json;json-header-size=")
