"""Codec of long lists of requests that make a job: as `codec.jobs` splits them, and as each is read, in slices.

Pure. None for what must be read by `codec.jobs` and `codec.infer`: it is wrong, or its JSON is of an unusual kind.
"""

from __future__ import annotations

import re

import msgspec

from protocol.errors import InvalidArgument
from protocol.http.codec.infer import DecodedRequest
from protocol.http.codec.jobs import LIST_READER, MAX_ITEMS, JobList, ListedRequest, read_listed_request
from protocol.http.codec.long_arrays import LongArray, find_long_arrays
from protocol.http.codec.long_infer import DATA, decode_long_request
from protocol.http.codec.long_json import short_rest
from protocol.messages import Buffer
from protocol.sync.sliced import Sliced

_REQUESTS = re.compile(rb'"requests"[ \t\r\n]*:[ \t\r\n]*\[')
_SPLIT = msgspec.json.Decoder(list[msgspec.Raw])


def split_long_list(body: Buffer) -> Sliced[JobList | None]:
    """As `read_job_list`."""
    text = memoryview(body)
    arrays = yield from find_long_arrays(text, _REQUESTS)
    rest = short_rest(text, arrays) if len(arrays) == 1 else None
    if rest is None:
        return None
    try:
        listed = LIST_READER.read(rest.text)
        is_it = rest.number_of([msgspec.json.decode(each) for each in listed.requests]) is not None
    except (InvalidArgument, msgspec.DecodeError):
        return None
    requests = (yield from _split(text, arrays[0])) if is_it else None
    if requests is None:
        return None
    listed.requests = requests
    return listed


def _split(text: memoryview, array: LongArray) -> Sliced[list[msgspec.Raw] | None]:
    found: list[msgspec.Raw] = []
    for piece in array.pieces:
        if piece.before != 1 or piece.after != 1 or piece.is_long_string:
            return None
        try:
            made = _SPLIT.decode(b"[" + bytes(text[piece.start : piece.end]) + b"]")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        if not made:  # a comma that nothing follows
            return None
        found += made
        if len(found) > MAX_ITEMS:
            return None
        yield
    return found


def read_long_listed(request: msgspec.Raw, max_input_size: int) -> Sliced[tuple[ListedRequest, DecodedRequest] | None]:
    """One of a list, as `read_listed_request` and `decode_infer_request` read it. Raises as they do."""
    text = memoryview(request)
    rest = short_rest(text, (yield from find_long_arrays(text, DATA)))
    if rest is None:
        return None
    named = read_listed_request(rest.text)
    work = decode_long_request(
        text, None, model_name=named.model_name, model_version=named.version, max_input_size=max_input_size
    )
    decoded = yield from work
    return None if decoded is None else (named, decoded)
