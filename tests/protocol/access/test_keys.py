"""The ring of keys: what a file may say, and who may make which call."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol.access.categories import GROUPS, Category
from protocol.access.keys import ANONYMOUS, KEY_NEEDED, KeyRing
from protocol.errors import Forbidden, Unauthenticated
from protocol.quotas.accounts import Terms
from protocol.quotas.meters import Rate
from protocol.quotas.quota import Limit, Unit

ALICE = "alice-0123456789abcdef"
CI = "Y2ktMDEyMzQ1Njc4OWFiY2RlZg=="
DIGEST = hashlib.sha256(CI.encode()).hexdigest()

FILE = f"""
[anonymous]
allow = ["health"]

[keys.alice]
key = "{ALICE}"
allow = ["inference", "metadata"]

[keys."ci @ build"]
sha256 = "{DIGEST.upper()}"
allow = ["all"]

[keys.suspended]
key = "suspended-0123456789"
allow = []
"""


def ring(text: str = FILE) -> KeyRing:
    return KeyRing.parse(text, source="keys.toml")


def test_the_documented_file_is_right() -> None:
    page = (Path(__file__).parents[3] / "docs" / "access.md").read_text()
    [example, with_quotas] = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert ring(example).names == ("alice", "prometheus", "ci deploy")
    assert [terms.quota is not None for terms in ring(with_quotas).terms] == [True, True]
    assert all(f"`{group}`" in page for group in GROUPS)
    assert all(f"`{category}` |" in page or category is Category.METRICS for category in Category)


def test_the_names_are_in_the_order_of_the_file() -> None:
    assert ring().names == ("alice", "ci @ build", "suspended")


@pytest.mark.parametrize(
    ("authorization", "category", "name"),
    [
        (f"Bearer {ALICE}", Category.INFERENCE, "alice"),
        (f"bearer {ALICE}", Category.MODEL_CONFIG, "alice"),
        (f"BEARER   {ALICE} ", Category.METADATA, "alice"),
        (f"Bearer {CI}", Category.MODEL_REPOSITORY, "ci @ build"),
        (f"Bearer {CI}", Category.METRICS, "ci @ build"),
        (f"Bearer {ALICE}", Category.HEALTH, "alice"),
        (None, Category.HEALTH, ANONYMOUS),
        ("Bearer unknown", Category.HEALTH, ANONYMOUS),
        ("Basic YTpi", Category.HEALTH, ANONYMOUS),
    ],
)
def test_who_may_call(authorization: str | None, category: Category, name: str) -> None:
    """A key opens its groups; what callers without a key may do, everyone may."""
    assert ring().check(authorization, category) == name


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer unknown-0123456789",
        f"Basic {ALICE}",
        f"Bearer\t{ALICE}",
        f"Bearer {ALICE} {ALICE}",
        f"Bearer {ALICE.upper()}",
        f"Bearer {ALICE[:-1]}",
        f"Bearer {DIGEST}",
        ALICE,
        "Bearer \udc80ä",
    ],
)
def test_missing_malformed_and_unknown_keys_get_one_text(authorization: str | None) -> None:
    with pytest.raises(Unauthenticated) as caught:
        ring().check(authorization, Category.INFERENCE)
    assert caught.value.message == KEY_NEEDED


@pytest.mark.parametrize(
    ("key", "category", "text"),
    [
        (ALICE, Category.STATISTICS, "key 'alice' does not allow 'statistics' calls, which need the group 'metrics'"),
        (
            "suspended-0123456789",
            Category.INFERENCE,
            "key 'suspended' does not allow 'inference' calls, which need the group 'inference'",
        ),
    ],
)
def test_a_known_key_is_told_what_it_lacks(key: str, category: Category, text: str) -> None:
    with pytest.raises(Forbidden) as caught:
        ring().check(f"Bearer {key}", category)
    assert caught.value.message == text


@pytest.mark.parametrize("text", ["[keys]", "[anonymous]\nallow = []"])
def test_a_file_may_lock_everyone_out(text: str) -> None:
    """Said in so many words, where an empty file is refused as a mistake."""
    for category in Category:
        with pytest.raises(Unauthenticated):
            ring(text).check(f"Bearer {ALICE}", category)


def entry(body: str) -> str:
    return f"[keys.a]\n{body}"


LONG = "k" * 16
GROUPS_TEXT = "inference, health, metadata, model-control, shared-memory, metrics, settings and all"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", ": holds neither a table [keys.<name>] nor [anonymous]"),
        ("x = ", " is not valid TOML: Invalid value (at end of document)"),
        (f"[keys.a]\nkey = {LONG}", " is not valid TOML: Invalid value (at line 2, column 7)"),
        ("a = " + "[" * 50_000, " is not valid TOML: nested too deep"),
        ("[key.a]", ": has the unknown table 'key', expected keys, anonymous or quotas"),
        ("keys = 1", ": 'keys' must be a table [keys.<name>], got an integer"),
        (f"[[keys]]\nkey = '{LONG}'", ": 'keys' must be a table [keys.<name>], got an array"),
        (f"[keys]\na = '{LONG}'", ": 'keys.a' must be a table [keys.<name>], got a string"),
        ("anonymous = true", ": 'anonymous' must be a table [anonymous], got a boolean"),
        ("[anonymous]", f": [anonymous] has no 'allow', expected an array of {GROUPS_TEXT}"),
        (
            "[anonymous]\nallow = []\nkey = ''",
            ": [anonymous] has the unknown field 'key', expected allow, quota, weight or webhook_secret",
        ),
        ("[keys.'']", ": [keys.'']: a name has 1 to 64 printable characters"),
        ('[keys."a\\nb"]', ": [keys.'a\\nb']: a name has 1 to 64 printable characters"),
        ("[keys.anonymous]", ": [keys.anonymous]: the name means callers without a key, whose table is [anonymous]"),
        (entry("allow = []"), ": [keys.a] has no key, expected 'key' or 'sha256'"),
        (entry(f"key = '{LONG}'\nsha256 = '{DIGEST}'"), ": [keys.a] has both 'key' and 'sha256', expected one of them"),
        (
            entry("token = ''"),
            ": [keys.a] has the unknown field 'token', expected key, sha256, allow, quota, weight or webhook_secret",
        ),
        (entry("key = 1979-05-27"), ": [keys.a] 'key' must be a string, got a date or a time"),
        (entry("sha256 = 1"), ": [keys.a] 'sha256' must be a string, got an integer"),
        (entry("key = 'short'"), ": [keys.a] 'key' has 5 characters, expected at least 16"),
        (
            entry("key = 'kkkkkkkk kkkkkkkk'"),
            ": [keys.a] 'key' must be letters, digits and any of -._~+/, with = only at its end",
        ),
        (entry("sha256 = 'abc'"), ": [keys.a] 'sha256' must be 64 hexadecimal digits"),
        (entry(f"sha256 = '{'g' * 64}'"), ": [keys.a] 'sha256' must be 64 hexadecimal digits"),
        (entry(f"key = '{LONG}'"), f": [keys.a] has no 'allow', expected an array of {GROUPS_TEXT}"),
        (
            entry(f"key = '{LONG}'\nallow = 'all'"),
            ": [keys.a] 'allow' must be an array of strings, got a string",
        ),
        (
            entry(f"key = '{LONG}'\nallow = ['all', 1.5]"),
            ": [keys.a] 'allow' must be an array of strings, got a float in it",
        ),
        (
            entry(f"key = '{LONG}'\nallow = ['infer']"),
            f": [keys.a] 'allow' has the unknown group 'infer', expected any of {GROUPS_TEXT}",
        ),
        (
            f"[keys.a]\nkey = '{CI}'\nallow = []\n[keys.b]\nsha256 = '{DIGEST}'\nallow = []",
            ": [keys.b] has the same key as [keys.a]",
        ),
    ],
)
def test_mistakes_are_named_by_file_entry_and_field_without_the_key(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match="auth keys file") as caught:
        ring(text)
    assert str(caught.value) == f"auth keys file 'keys.toml'{problem}"
    assert LONG not in str(caught.value)


NAMES = st.text(st.characters(codec="ascii", categories=("L", "N", "Pd")), min_size=1, max_size=64).filter(
    lambda name: name != ANONYMOUS
)
KEYS = st.from_regex(r"[A-Za-z0-9._~+/-]{16,40}={0,2}", fullmatch=True)


@pytest.mark.slow
@settings(deadline=None)
@given(
    entries=st.dictionaries(NAMES, st.tuples(KEYS, st.sets(st.sampled_from(sorted(GROUPS))), st.booleans()), max_size=4)
)
def test_every_right_file_is_read_as_it_says(entries: dict[str, tuple[str, set[str], bool]]) -> None:
    """Plain or as a digest, each key opens its own groups and no others."""
    unique = {name: entry for i, (name, entry) in enumerate(entries.items()) if entry[0] not in _keys(entries, i)}
    text = "[keys]\n" + "".join(
        f'[keys."{name}"]\n{_key_line(key, as_digest)}\nallow = {sorted(groups)}\n'
        for name, (key, groups, as_digest) in unique.items()
    )
    made = ring(text)
    for name, (key, groups, _) in unique.items():
        allowed = {category for group in groups for category in GROUPS[group]}
        for category in Category:
            if category in allowed:
                assert made.check(f"Bearer {key}", category) == name
            else:
                with pytest.raises(Forbidden):
                    made.check(f"Bearer {key}", category)


def _keys(entries: dict[str, tuple[str, set[str], bool]], count: int) -> set[str]:
    return {key for key, _, _ in list(entries.values())[:count]}


def _key_line(key: str, as_digest: bool) -> str:
    return f"sha256 = '{hashlib.sha256(key.encode()).hexdigest()}'" if as_digest else f"key = '{key}'"


LINES = ["[keys]", "[keys.a]", "[keys.b]", "[[keys]]", "[anonymous]", "allow = ['all']", "allow = [[]]", "keys = []"]
LINES += [f"key = '{LONG}'", f"sha256 = '{DIGEST}'", "key = {}", "sha256 = 1e400", "a.b = 1", "= 1", "\\", "x = '"]


@settings(deadline=None)
@given(text=st.text() | st.lists(st.sampled_from(LINES), max_size=6).map("\n".join))
@example("\x00")
@example("\ufeff[keys]")
def test_any_text_makes_a_ring_or_raises_value_error(text: str) -> None:
    try:
        made = ring(text)
    except ValueError as exc:
        message = str(exc)
    else:
        message = ""
        assert set(made.names) <= {"a", "b"}
    assert not message or message.startswith("auth keys file 'keys.toml'")


QUOTA = """
[quotas.q]
requests = { limit = 600, seconds = 60, burst = 50 }
tokens = { limit = 1.5, seconds = 60 }
concurrent_requests = 8
[quotas.q.models.large]
concurrent_requests = 2
"""


def test_quotas_are_what_keys_name() -> None:
    keys = ring(f"{QUOTA}[keys.a]\nkey = '{ALICE}'\nallow = []\nquota = 'q'\n[anonymous]\nallow = []")
    first, anonymous = keys.terms
    assert (first.name, anonymous) == ("a", Terms("anonymous"))
    assert first.quota is not None
    assert first.quota.limits() == {
        Limit(Unit.REQUESTS, Rate(600, 60, 50)),
        Limit(Unit.TOKENS, Rate(1.5, 60, 1.5)),
        Limit(Unit.CONCURRENT_REQUESTS, 8),
        Limit(Unit.CONCURRENT_REQUESTS, 2, "large"),
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "",
            "[quotas.q] limits nothing, expected any of requests, tokens, compute_seconds, bytes, concurrent_requests",
        ),
        (
            "what = 1",
            "[quotas.q] has the unknown field 'what', expected requests, tokens, compute_seconds, bytes, "
            "concurrent_requests or models",
        ),
        ("requests = 5", "[quotas.q] 'requests' must be a table { limit = 600, seconds = 60 }, got an integer"),
        ("requests = { limit = 5 }", "[quotas.q.requests] has no 'seconds', expected limit and seconds"),
        (
            "requests = { limit = 0, seconds = 1 }",
            "[quotas.q.requests] 'limit' must be above 0 and at most 1e+15, got 0",
        ),
        (
            "requests = { limit = nan, seconds = 1 }",
            "[quotas.q.requests] 'limit' must be above 0 and at most 1e+15, got nan",
        ),
        ("requests = { limit = true, seconds = 1 }", "[quotas.q.requests] 'limit' must be a number, got a boolean"),
        (
            "requests = { limit = 1, seconds = inf }",
            "[quotas.q.requests] 'seconds' must be above 0 and at most 2.6784e+06, got inf",
        ),
        (
            "requests = { limit = 1, seconds = 1, burst = 0.5 }",
            "[quotas.q.requests] 'burst' must be at least 1, got 0.5",
        ),
        (
            "requests = { limit = 1, seconds = 1, what = 1 }",
            "[quotas.q.requests] has the unknown field 'what', expected limit, seconds or burst",
        ),
        (
            "requests = { limit = 1e-300, seconds = 1 }",
            "[quotas.q.requests] 'limit' must be at least 1e-09, got 1e-300",
        ),
        (
            f"requests = {{ limit = {10**400}, seconds = 1 }}",
            "[quotas.q.requests] 'limit' must be above 0 and at most 1e+15, got an integer of more than 300 digits",
        ),
        ("concurrent_requests = 2000000000000000", "[quotas.q] 'concurrent_requests' must be at most 1e+15, got 2e+15"),
        ("concurrent_requests = 0", "[quotas.q] 'concurrent_requests' must be at least 1, got 0"),
        ("concurrent_requests = 1.5", "[quotas.q] 'concurrent_requests' must be an integer, got a float"),
        ("models = 1", "'quotas.q.models' must be a table [quotas.q.models.<model>], got an integer"),
        (
            "models.m.models = 1",
            "[quotas.q.models.m] has the unknown field 'models', expected requests, tokens, "
            "compute_seconds, bytes or concurrent_requests",
        ),
    ],
)
def test_mistakes_in_quotas_are_named(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match="auth keys file") as caught:
        ring(f"[quotas.q]\n{text}\n[keys.a]\nkey = '{ALICE}'\nallow = []")
    assert str(caught.value) == f"auth keys file 'keys.toml': {problem}"


def test_a_number_of_more_digits_than_python_reads_is_a_mistake_of_the_file() -> None:
    with pytest.raises(ValueError, match=r"auth keys file 'keys.toml' is not valid TOML: .*5001 digits"):
        ring(f"[anonymous]\nallow = []\nweight = 1{'0' * 5000}")


def test_a_key_names_a_quota_of_the_file() -> None:
    for quota, problem in (("'other'", "has the unknown name 'other', expected q"), ("1", "must be a string, got an ")):
        with pytest.raises(ValueError, match=f"'quota' {problem}"):
            ring(f"{QUOTA}[keys.a]\nkey = '{ALICE}'\nallow = []\nquota = {quota}")
    with pytest.raises(ValueError, match=r"expected a table \[quotas\.<name>\], of which there is none"):
        ring(f"[keys.a]\nkey = '{ALICE}'\nallow = []\nquota = 'q'")


def test_where_one_key_has_a_weight_the_others_have_one_too() -> None:
    text = f"[keys.a]\nkey = '{ALICE}'\nallow = []\n[keys.b]\nsha256 = '{DIGEST}'\nallow = []\n"
    assert [terms.weight for terms in ring(text).terms] == [0, 0, 0]
    assert [terms.weight for terms in ring(f"{text}weight = 2.5").terms] == [
        1,
        2.5,
        0,
    ]  # there are no callers without a key
    assert [terms.weight for terms in ring(f"{text}[anonymous]\nallow = []\nweight = 3").terms] == [1, 1, 3]
    with pytest.raises(ValueError, match=r"\[keys\.b\] 'weight' must be above 0 and at most 1e\+06, got -1"):
        ring(f"{text}weight = -1")


SECRETS = ["whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3", "whsec_" + "eHh4" * 10]


def test_webhook_secrets() -> None:
    found = ring(
        f"[keys.a]\nkey = '{LONG}'\nallow = []\nwebhook_secret = '{SECRETS[0]}'\n"
        f"[keys.b]\nkey = '{CI}'\nallow = []\nwebhook_secret = {SECRETS}\n[anonymous]\nallow = []"
    )
    assert found.webhook_secrets("a") == (b"0123456789abcdef01234567",)
    assert found.webhook_secrets("b") == (b"0123456789abcdef01234567", b"x" + b"xx" + b"xxx" * 9)
    assert found.webhook_secrets("anonymous") == found.webhook_secrets("gone") == ()


@pytest.mark.parametrize(
    ("secret", "problem"),
    [
        ("'whsec_short'", "expected whsec_ and 24 to 64 bytes in base64"),
        ("7", "must be a string, or an array of at most 4 strings"),
        ("[7]", "must be a string, or an array of at most 4 strings"),
        (str(SECRETS * 3), "must be a string, or an array of at most 4 strings"),
    ],
)
def test_what_is_no_webhook_secret(secret: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        ring(f"[keys.a]\nkey = '{LONG}'\nallow = []\nwebhook_secret = {secret}")
    assert "whsec_short" not in str(caught.value)
