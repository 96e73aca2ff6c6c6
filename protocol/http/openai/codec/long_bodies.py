"""Bodies with long texts, above all pictures in base64, read in slices: as `codec.reading` reads them.

Pure. Pictures stay where they are in the body (`LongText`); every other text becomes a string. None for a body that
must be read in one go: it has no such texts, much beside them, or something is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar

import msgspec

from protocol.errors import InvalidArgument
from protocol.http.codec.long_json import Rest, short_rest
from protocol.http.codec.long_texts import find_long_texts
from protocol.http.openai.codec.images import LongText
from protocol.http.openai.codec.reading import BodyReader
from protocol.messages import Buffer
from protocol.sync.sliced import Sliced

T = TypeVar("T", bound=msgspec.Struct)

PicturePlaces: TypeAlias = Callable[[T], Iterator[tuple[dict[str, Any], str]]]
"""Where the pictures of a body are: objects, and the members of them that are texts."""

_NODES = 1 << 9


def read_long_body(body: Buffer, reader: BodyReader[T], places: PicturePlaces[T], *, strict: bool) -> Sliced[T | None]:
    text = memoryview(body)
    texts = yield from find_long_texts(text)
    rest = short_rest(text, texts) if texts else None
    if rest is None:
        return None
    try:
        request = reader.read(rest.text, strict=strict)
    except InvalidArgument:
        return None
    contents = [text[each.start + 1 : each.end - 1] for each in texts]
    put = 0
    for holder, key in places(request):
        number = rest.number_of(holder.get(key))
        if number is not None:
            holder[key] = LongText(contents[number])
            put += 1
    yield
    for name in request.__struct_fields__:
        number = rest.number_of(value := getattr(request, name))
        if number is not None:
            setattr(request, name, str(contents[number], "ascii"))
            put += 1
        elif isinstance(value, (dict, list)):
            put += yield from _restored(value, rest, contents)
    return request if put == len(texts) else None


def _restored(root: Any, rest: Rest, contents: list[memoryview]) -> Sliced[int]:
    """How many texts have been put where they were."""
    put = seen = 0
    waiting = [root]
    while waiting:
        holder = waiting.pop()
        for key, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
            number = rest.number_of(value)
            if number is not None:
                holder[key] = str(contents[number], "ascii")
                put += 1
                yield
            elif isinstance(value, (dict, list)):
                waiting.append(value)
            seen += 1
            if not seen % _NODES:
                yield
    return put
