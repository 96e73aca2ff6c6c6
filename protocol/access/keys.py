"""Key ring: the bearer keys of an auth keys file, and the categories of calls that each grants.

A ring is an immutable value, made from the text of an auth keys file; `keys_file` holds the current one. It keeps
SHA-256 digests only. The file is TOML; docs/access.md has an example and says what each field means.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from protocol.access.categories import GROUPS, Category, group_of
from protocol.access.quota_tables import read_quotas
from protocol.access.tables import Mistake, read_number, read_table, refuse_unknown, type_word, words
from protocol.errors import Forbidden, Unauthenticated
from protocol.quotas.accounts import Terms
from protocol.quotas.quota import Quota
from protocol.webhooks.signing import MOST_SECRETS, read_secret

# The name of callers without a key.
ANONYMOUS = "anonymous"

MIN_KEY_LENGTH = 16
MAX_NAME_LENGTH = 64
MAX_WEIGHT = 1e6

# One text for a missing, a malformed and an unknown key: it must not help to guess one.
KEY_NEEDED = "a valid key is needed, expecting header 'Authorization: Bearer <key>'"

# What each entry may have beside its key and what that allows.
_TERMS = ("quota", "weight", "webhook_secret")
_BEARER_KEY = re.compile(r"[A-Za-z0-9\-._~+/]+=*")  # RFC 6750, 2.1: b64token
_SHA256 = re.compile(r"[0-9A-Fa-f]{64}")


@dataclass(frozen=True, slots=True)
class Key:
    """`terms` say what it may use; `webhook_secrets` sign what its owner is told, the newest first."""

    terms: Terms
    allowed: Set[Category]
    webhook_secrets: tuple[bytes, ...] = ()

    @property
    def name(self) -> str:
        return self.terms.name


NOBODY = Key(Terms(ANONYMOUS), frozenset())


class KeyRing:
    """Keys by the SHA-256 digest of their text, and what callers without a key may do."""

    __slots__ = ("_by_name", "anonymous", "by_digest")

    def __init__(self, by_digest: Mapping[bytes, Key], anonymous: Key = NOBODY) -> None:
        self.by_digest = by_digest
        self.anonymous = anonymous
        self._by_name = {key.name: key for key in (anonymous, *by_digest.values())}

    @classmethod
    def parse(cls, text: str, *, source: str) -> KeyRing:
        """A ring from the text of an auth keys file; `source` is the file's name in errors.

        Raises:
            ValueError: the text is not such a file. The error names file, entry and field, and shows no key.
        """
        try:
            return _ring(tomllib.loads(text))
        except ValueError as exc:  # also of integers of too many digits, which are no TOMLDecodeError
            raise ValueError(f"auth keys file '{source}' is not valid TOML: {exc}") from None
        except RecursionError:
            raise ValueError(f"auth keys file '{source}' is not valid TOML: nested too deep") from None
        except Mistake as exc:
            raise ValueError(f"auth keys file '{source}': {exc}") from None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all keys, in the order of the file."""
        return tuple(key.name for key in self.by_digest.values())

    @property
    def terms(self) -> list[Terms]:
        """What each key may use, in the order of the file, and callers without a key."""
        return [key.terms for key in (*self.by_digest.values(), self.anonymous)]

    def webhook_secrets(self, name: str) -> tuple[bytes, ...]:
        """Those of the key of this name; empty where it has none, or is not there."""
        key = self._by_name.get(name)
        return () if key is None else key.webhook_secrets

    def allows(self, name: str, category: Category) -> bool:
        """Whether there is a key of this name, or it means callers without one, and it may make such calls."""
        key = self._by_name.get(name)
        return key is not None and (category in key.allowed or category in self.anonymous.allowed)

    def check(self, authorization: str | None, category: Category) -> str:
        """The name of the caller's key; `anonymous` where it has none and needs none.

        `authorization` is the value of the call's header of that name, None where it has none.

        Raises:
            Unauthenticated: the category needs a key, and there is none that this ring knows.
            Forbidden: the key is known and does not allow the category.
        """
        key = None if authorization is None else self._find(authorization)
        if category in self.anonymous.allowed:
            return ANONYMOUS if key is None else key.name
        if key is None:
            raise Unauthenticated(KEY_NEEDED)
        if category not in key.allowed:
            raise Forbidden(
                f"key '{key.name}' does not allow '{category}' calls, which need the group '{group_of(category)}'"
            )
        return key.name

    def name_of(self, authorization: str | None) -> str:
        """The name of the caller's key; `anonymous` where it has none that this ring knows."""
        key = None if authorization is None else self._find(authorization)
        return ANONYMOUS if key is None else key.name

    def _find(self, authorization: str) -> Key | None:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        # The time of the look-up tells something about the digest at most, and a digest does not lead to its key.
        return self.by_digest.get(_digest(token.strip(" ")))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _ring(document: dict[str, Any]) -> KeyRing:
    refuse_unknown(document, ("keys", "anonymous", "quotas"), "table")
    if not {"keys", "anonymous"} & document.keys():
        raise Mistake("holds neither a table [keys.<name>] nor [anonymous]")
    terms = _TermsReader(document)
    by_digest: dict[bytes, Key] = {}
    for name, content in read_table(document.get("keys", {}), "keys", "[keys.<name>]").items():
        _check_name(name)
        where = f"keys.{name}"
        entry = read_table(content, where, "[keys.<name>]")
        refuse_unknown(entry, ("key", "sha256", "allow", *_TERMS), "field", where)
        digest = _entry_digest(entry, where)
        if digest in by_digest:
            raise Mistake(f"[{where}] has the same key as [keys.{by_digest[digest].name}]")
        by_digest[digest] = _key(name, entry, where, terms)
    if ANONYMOUS not in document:
        return KeyRing(by_digest)
    entry = read_table(document[ANONYMOUS], ANONYMOUS)
    refuse_unknown(entry, ("allow", *_TERMS), "field", ANONYMOUS)
    return KeyRing(by_digest, _key(ANONYMOUS, entry, ANONYMOUS, terms))


def _key(name: str, entry: dict[str, Any], where: str, terms: _TermsReader) -> Key:
    return Key(terms.read(name, entry, where), _allowed(entry, where), _webhook_secrets(entry, where))


class _TermsReader:
    """Reads what keys may use. Where one key has a weight, those without have 1."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._quotas = read_quotas(document)
        keys = document.get("keys")
        entries = [document.get(ANONYMOUS), *(keys.values() if isinstance(keys, dict) else ())]
        self._weight = float(any(isinstance(entry, dict) and "weight" in entry for entry in entries))

    def read(self, name: str, entry: dict[str, Any], where: str) -> Terms:
        """Raises Mistake."""
        weight = read_number(entry, "weight", where, most=MAX_WEIGHT) if "weight" in entry else self._weight
        return Terms(name, self._quota(entry, where), weight)

    def _quota(self, entry: dict[str, Any], where: str) -> Quota | None:
        quota, quotas = entry.get("quota"), self._quotas
        if quota is None:
            return None
        if not isinstance(quota, str):
            raise Mistake(f"[{where}] 'quota' must be a string, got {type_word(quota)}")
        if quota not in quotas:
            known = words(quotas, "or") if quotas else "a table [quotas.<name>], of which there is none"
            raise Mistake(f"[{where}] 'quota' has the unknown name {quota[:40]!r}, expected {known}")
        return quotas[quota]


def _check_name(name: str) -> None:
    # Names appear in the log and in answers.
    if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        raise Mistake(f"[keys.{name[:MAX_NAME_LENGTH]!a}]: a name has 1 to {MAX_NAME_LENGTH} printable characters")
    if name == ANONYMOUS:
        raise Mistake(f"[keys.{name}]: the name means callers without a key, whose table is [{name}]")


def _entry_digest(entry: dict[str, Any], where: str) -> bytes:
    match entry:
        case {"key": _, "sha256": _}:
            raise Mistake(f"[{where}] has both 'key' and 'sha256', expected one of them")
        case {"key": str(key)}:
            if not _BEARER_KEY.fullmatch(key):
                raise Mistake(f"[{where}] 'key' must be letters, digits and any of -._~+/, with = only at its end")
            if len(key) < MIN_KEY_LENGTH:
                raise Mistake(f"[{where}] 'key' has {len(key)} characters, expected at least {MIN_KEY_LENGTH}")
            return _digest(key)
        case {"sha256": str(digest)}:
            if not _SHA256.fullmatch(digest):
                raise Mistake(f"[{where}] 'sha256' must be 64 hexadecimal digits")
            return bytes.fromhex(digest)
        case {"key": other} | {"sha256": other}:
            field = "key" if "key" in entry else "sha256"
            raise Mistake(f"[{where}] '{field}' must be a string, got {type_word(other)}")
        case _:
            raise Mistake(f"[{where}] has no key, expected 'key' or 'sha256'")


def _allowed(table: dict[str, Any], where: str) -> Set[Category]:
    if "allow" not in table:
        raise Mistake(f"[{where}] has no 'allow', expected an array of {words(GROUPS)}")
    groups = table["allow"]
    if not isinstance(groups, list):
        raise Mistake(f"[{where}] 'allow' must be an array of strings, got {type_word(groups)}")
    allowed: set[Category] = set()
    for group in groups:
        if not isinstance(group, str):
            raise Mistake(f"[{where}] 'allow' must be an array of strings, got {type_word(group)} in it")
        if group not in GROUPS:
            raise Mistake(f"[{where}] 'allow' has the unknown group {group[:40]!r}, expected any of {words(GROUPS)}")
        allowed |= GROUPS[group]
    return frozenset(allowed)


def _webhook_secrets(table: dict[str, Any], where: str) -> tuple[bytes, ...]:
    found = table.get("webhook_secret", [])
    texts = found if isinstance(found, list) else [found]
    if len(texts) > MOST_SECRETS or not all(isinstance(text, str) for text in texts):
        raise Mistake(f"[{where}] 'webhook_secret' must be a string, or an array of at most {MOST_SECRETS} strings")
    try:
        return tuple(map(read_secret, texts))
    except ValueError as error:
        raise Mistake(f"[{where}] 'webhook_secret': {error}") from None
