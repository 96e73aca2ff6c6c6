"""Restricted APIs, as Triton has them: calls of a category need a header with a given value.

The flags `--http-restricted-api` and `--grpc-restricted-protocol` are parsed here, one `Restriction` for each value;
`RestrictedApis` joins them and is asked before each call. Source: Triton, "Limit Endpoint Access".
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from protocol.access.categories import RESTRICTABLE, Category
from protocol.errors import Restricted

# The first value of a header in one call, by its name in lower case; None where the call has no such header.
HeaderLookup: TypeAlias = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between the two edges: terms, and the prefix of header names."""

    option: str
    noun: str
    title: str
    header_prefix: str = ""


HTTP_API = Dialect(option="http-restricted-api", noun="api", title="API")
GRPC_PROTOCOL = Dialect(
    option="grpc-restricted-protocol",
    noun="protocol",
    title="protocol",
    header_prefix="triton-grpc-protocol-",
)

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, 5.6.2: token
_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")  # what arrives unchanged by every client: printable, no space at the ends


@dataclass(frozen=True, slots=True)
class Restriction:
    """One value of the flag: these categories need this header. `header` is the whole name, as texts show it."""

    categories: tuple[Category, ...]
    header: str
    value: str = field(repr=False)

    @classmethod
    def parse(cls, text: str, dialect: Dialect) -> Restriction:
        """From `<category>[,<category>]:<header>=<value>`. The texts of errors never show the value.

        Raises:
            ValueError: another form, an unknown category or one that is named twice, a header or a value that no
                client can send.
        """
        names, colon, setting = text.partition(":")
        header, equals, value = setting.partition("=")
        if not (names and colon and header and equals and value):
            raise ValueError(f"--{dialect.option} option format is '<category>[,<category>]:<header>=<value>'")
        if not _NAME.fullmatch(header):
            raise ValueError(f"'{header}' is not a header's name: letters, digits and any of !#$%&'*+-.^_`|~")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"the value of header '{header}' must be printable ASCII without spaces at its ends")
        categories = tuple(_category(name, dialect) for name in names.split(","))
        restriction = cls(categories, dialect.header_prefix + header, value)
        RestrictedApis((restriction,), dialect)  # a category that is named twice in one value
        return restriction


class RestrictedApis:
    """The restrictions of one edge; without any, every call passes.

    Raises:
        ValueError: two restrictions name the same category.
    """

    __slots__ = ("_by_category", "_dialect")

    def __init__(self, restrictions: Iterable[Restriction] = (), dialect: Dialect = HTTP_API) -> None:
        self._dialect = dialect
        self._by_category: dict[Category, Restriction] = {}
        for restriction in restrictions:
            for category in restriction.categories:
                if category in self._by_category:
                    raise ValueError(
                        f"restricted {dialect.noun} '{category}' can not be specified in multiple config groups"
                    )
                self._by_category[category] = restriction

    @classmethod
    def parse(cls, values: Iterable[str], dialect: Dialect) -> RestrictedApis:
        """From all values of the flag.

        Raises:
            ValueError: as `Restriction.parse`, or two values name the same category.
        """
        return cls([Restriction.parse(value, dialect) for value in values], dialect)

    @property
    def is_open(self) -> bool:
        return not self._by_category

    def check(self, category: Category, headers: HeaderLookup) -> None:
        """Pass, or raise Restricted with Triton's text for the edge's dialect."""
        restriction = self._by_category.get(category)
        if restriction is None:
            return
        given = headers(restriction.header.lower())
        # `surrogatepass` gives every text a form of its own, so nothing but the value equals it.
        if given is None or not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), restriction.value.encode()):
            raise Restricted(f"This {self._dialect.title} is restricted, expecting header '{restriction.header}'")


def _category(name: str, dialect: Dialect) -> Category:
    if name not in RESTRICTABLE:
        raise ValueError(f"unknown restricted {dialect.noun} '{name}', expected one of {', '.join(RESTRICTABLE)}")
    return Category(name)
