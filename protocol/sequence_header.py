"""The header `x-sequence-id` (over gRPC: metadata): the id of a request's sequence, where balancers find it.

A balancer that keeps a sequence on one server reads headers, not bodies. Digits are a number; anything else is a text,
as are digits in quotes (RFC 8941: integer, token, string).
"""

from __future__ import annotations

from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest

SEQUENCE_HEADER = "x-sequence-id"
SEQUENCE_HEADER_BYTES = SEQUENCE_HEADER.encode()

_UINT64 = 2**64


def put_sequence_id(request: InferenceRequest, given: str) -> None:
    """Make it the request's sequence, whose own parameter may be absent, or say the same.

    Raises:
        InvalidArgument: they disagree, or it is a number of more than 64 bits.
    """
    id = _parsed(given)
    own = request.sequence_id
    if not own:
        request.sequence_id = id
    elif str(own) != str(id):
        raise InvalidArgument(
            f"the header '{SEQUENCE_HEADER}' and the parameter 'sequence_id' of the request to model "
            f"'{request.model_name}' disagree: got '{given[:64]}' and '{str(own)[:64]}'; leave one out, or say the same"
        )


def _parsed(given: str) -> int | str:
    if len(given) > 1 and given[0] == given[-1] == '"':
        return given[1:-1]
    if not (given.isascii() and given.isdigit()):
        return given
    if len(given) > 20 or int(given) >= _UINT64:
        raise InvalidArgument(
            f"the header '{SEQUENCE_HEADER}' is no number of 64 bits: got '{given[:64]}'; in quotes it is a text"
        )
    return int(given)
