"""The flags of the response cache and the rate limiter: what they become, and what is refused."""

from __future__ import annotations

import pytest

from actors.instance.rate_limit_policy import RateLimitResource
from trioton.flags.fields import UsageError, read_arguments, rows
from trioton.flags.scheduling import CacheChoice
from trioton.settings import Settings


def read(*arguments: str) -> Settings:
    return Settings(**read_arguments(rows(Settings), ["--model-repository=models", *arguments]))


def test_off_is_the_default() -> None:
    settings = read()
    assert settings.cache() is None
    assert (settings.rate_limit, settings.rate_limit_resource) == ("off", ())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--cache-config=local,size=1048576"], CacheChoice("local", {"size": "1048576"})),
        (["--response-cache-byte-size=4096"], CacheChoice("local", {"size": "4096"})),
        (
            ["--cache-config", "redis,host=h", "--cache-config", "redis,password=a,b=c"],
            CacheChoice("redis", {"host": "h", "password": "a,b=c"}),
        ),
    ],
)
def test_a_cache(arguments: list[str], expected: CacheChoice) -> None:
    assert read(*arguments).cache() == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("R1:10", RateLimitResource("R1", 10)),
        ("R1:10:0", RateLimitResource("R1", 10, 0)),
        ("R:0:7", RateLimitResource("R", 0, 7)),
    ],
)
def test_a_resource(text: str, expected: RateLimitResource) -> None:
    settings = read("--rate-limit=execution_count", f"--rate-limit-resource={text}")
    assert settings.rate_limit == "execution_count"
    assert settings.rate_limit_resource == (expected,)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--cache-config=size=1"], "No cache specified. --cache-config option format is"),
        (["--cache-config=local"], "No cache specified. --cache-config option format is"),
        (["--cache-config=local,size"], "--cache-config option format is <cache name>,<setting>=<value>"),
        (
            ["--cache-config=local,size=1", "--cache-config=redis,host=h"],
            "found multiple cache configurations, but only a single cache is currently supported: local, redis",
        ),
        (
            ["--cache-config=local,size=1", "--response-cache-byte-size=5"],
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided",
        ),
        (["--rate-limit=sometimes"], "invalid argument for --rate-limit"),
        (["--rate-limit-resource=R"], "--rate-limit-resource option format is"),
        (["--rate-limit-resource=R:x"], "count and device are whole numbers"),
        (["--rate-limit-resource=R:1:2:3"], "--rate-limit-resource option format is"),
        (["--rate-limit-resource=:1"], "--rate-limit-resource option format is"),
    ],
)
def test_what_is_refused(arguments: list[str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        read(*arguments)


def test_a_password_is_not_shown() -> None:
    """Neither by an error nor by the settings' text."""
    with pytest.raises(UsageError) as caught:
        read("--cache-config=redis;password=secret")
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(read("--cache-config=redis,password=secret").cache())
