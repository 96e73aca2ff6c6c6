"""Restricted APIs, as Triton has them: calls of a category need a header with a given value.

The flags `--http-restricted-api`, `--grpc-restricted-protocol` and `--openai-restricted-api` are parsed here, one
`Restriction` for each value;
`RestrictedApis` joins them and is asked before each call. Source: Triton, "Limit Endpoint Access".
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from protocol.access.categories import RESTRICTABLE, Category
from protocol.errors import Restricted

# The first value of a header in one call, by its name in lower case; None where the call has no such header.
HeaderLookup: TypeAlias = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between the edges: terms, the prefix of header names, and which categories each word stands for."""

    option: str
    noun: str
    title: str
    header_prefix: str = ""
    ending: str = ""
    words: Mapping[str, tuple[Category, ...]] = field(default_factory=lambda: {each: (each,) for each in RESTRICTABLE})
    unknown: str = "unknown restricted"

    def word_of(self, category: Category) -> str:
        """The word that stands for a category."""
        return next(word for word, categories in self.words.items() if category in categories)


# Triton has no metrics on the port of HTTP, and no word for them.
HTTP_API = Dialect(
    option="http-restricted-api", noun="api", title="API", words={category: (category,) for category in Category}
)
GRPC_PROTOCOL = Dialect(
    option="grpc-restricted-protocol",
    noun="protocol",
    title="protocol",
    header_prefix="triton-grpc-protocol-",
)
# Triton's OpenAI frontend: the list of models is of the repository, and metrics may be restricted.
OPENAI_API = Dialect(
    option="openai-restricted-api",
    noun="api",
    title="API",
    ending=" with valid value",
    words={
        "inference": (Category.INFERENCE,),
        "model-repository": (Category.MODEL_REPOSITORY, Category.METADATA),
        "metrics": (Category.METRICS,),
        "health": (Category.HEALTH,),
    },
    unknown="Unknown",
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
        categories = tuple(each for name in names.split(",") for each in _categories(name, dialect))
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
                        f"restricted {dialect.noun} '{dialect.word_of(category)}' can not be specified in multiple "
                        f"config groups"
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
            raise Restricted(
                f"This {self._dialect.title} is restricted, expecting header '{restriction.header}'"
                f"{self._dialect.ending}"
            )


def _categories(name: str, dialect: Dialect) -> tuple[Category, ...]:
    found = dialect.words.get(name)
    if found is None:
        noun = dialect.title if dialect.unknown[0].isupper() else dialect.noun
        raise ValueError(f"{dialect.unknown} {noun} '{name}', expected one of {', '.join(dialect.words)}")
    return found
