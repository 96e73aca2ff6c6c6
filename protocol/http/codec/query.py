"""The query of a request's target, as a mapping."""

from __future__ import annotations

from urllib.parse import parse_qs

from protocol.errors import InvalidArgument

_MOST_FIELDS = 20


def read_query(query: bytes) -> dict[str, str]:
    """The first value of each field. Raises InvalidArgument."""
    try:
        found = parse_qs(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise InvalidArgument(f"the query has more than {_MOST_FIELDS} fields") from None
    return {name: values[0] for name, values in found.items()}
