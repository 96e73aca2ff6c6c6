"""Which services' plain inference edge processes answer themselves."""

from __future__ import annotations

import pytest

from trioton.edge_processes.linked import linked_words
from trioton.settings import Settings

BOTH = frozenset(("http", "grpc"))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), BOTH),
        (("--auth-keys-file=keys.toml",), frozenset()),
        (("--access-log=errors",), frozenset()),
        (("--access-log=off",), BOTH),
        (("--console",), frozenset()),
        (("--capture=/tmp/there",), frozenset()),
        (("--http-restricted-api=inference:key=value",), {"grpc"}),
        (("--http-header-forward-pattern=x-.*",), {"grpc"}),
        (("--grpc-restricted-protocol=inference:key=value",), {"http"}),
        (("--grpc-header-forward-pattern=x-.*",), {"http"}),
        (("--grpc-infer-response-compression-level=low",), {"http"}),
    ],
)
def test_words(flags: tuple[str, ...], words: frozenset[str]) -> None:
    assert linked_words(Settings.from_flags(["--model-repository=models", *flags])) == words
