"""Flags of the response cache and the rate limiter.

Part of `trioton.settings`; here their texts become what the actors take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.instance.rate_limit_policy import RateLimitResource
from trioton.flags.fields import INTEGER, UsageError, choice, flag, integer, repeatable

SCHEDULING = "Response cache and rate limiter"

_LARGEST_COUNT = 2**32 - 1
_rate_limit_modes = choice("off", "execution_count")


@dataclass(frozen=True, slots=True)
class CacheOption:
    """One `--cache-config`: a setting of a cache."""

    cache: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class CacheChoice:
    """The response cache that a server is to have. `settings` may hold a password."""

    name: str
    settings: dict[str, str] = field(repr=False)


def cache_option(text: str) -> CacheOption:
    cache, comma, setting = text.partition(",")
    key, equals, value = setting.partition("=")
    if not comma or not cache or "=" in cache:
        raise ValueError("No cache specified. --cache-config option format is <cache name>,<setting>=<value>")
    if not key or not equals:
        raise ValueError("--cache-config option format is <cache name>,<setting>=<value>")
    return CacheOption(cache, key, value)


def cache_choice(options: Sequence[CacheOption], response_cache_byte_size: int) -> CacheChoice | None:
    """What the flags say together; None for no cache.

    Raises:
        UsageError: they contradict each other.
    """
    if response_cache_byte_size:
        if options:
            raise UsageError(
                "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide "
                "one or the other."
            )
        return CacheChoice("local", {"size": str(response_cache_byte_size)})
    names = list(dict.fromkeys(option.cache for option in options))
    if not names:
        return None
    if len(names) > 1:
        raise UsageError(
            "found multiple cache configurations, but only a single cache is currently supported: " + ", ".join(names)
        )
    return CacheChoice(names[0], {option.key: option.value for option in options})


def rate_limit_mode(text: str) -> str:
    try:
        return _rate_limit_modes(text)
    except ValueError as error:
        raise ValueError(f"invalid argument for --rate-limit; {error}") from None


def rate_limit_resource(text: str) -> RateLimitResource:
    parts = text.split(":")
    if len(parts) not in (2, 3) or not parts[0]:
        raise ValueError("--rate-limit-resource option format is <resource_name>:<count>[:<device>]")
    numbers: list[int] = []
    for part in parts[1:]:
        if not (part.isascii() and part.isdigit()) or int(part) > _LARGEST_COUNT:
            raise ValueError(
                "--rate-limit-resource option format is <resource_name>:<count>[:<device>]; count and device are whole "
                "numbers"
            )
        numbers.append(int(part))
    return RateLimitResource(parts[0], *numbers)


@dataclass(frozen=True, kw_only=True)  # without slots, so that a class may have several such parts
class SchedulingFlags:
    """The part of the settings that is about the response cache and the rate limiter."""

    cache_config: tuple[CacheOption, ...] = repeatable(
        cache_option,
        group=SCHEDULING,
        metavar="<cache>,<setting>=<value>",
        help="Keep responses of models with response_cache { enable: true }. local,size=<bytes>: in memory. "
        "redis,host=<name>: in a Redis server. May be given several times, for one cache.",
        is_secret=True,
    )
    response_cache_byte_size: int = flag(
        0, integer(0), group=SCHEDULING, metavar=INTEGER, help="Deprecated: --cache-config local,size=<integer>."
    )
    rate_limit: str = flag(
        "off",
        rate_limit_mode,
        group=SCHEDULING,
        metavar="{off,execution_count}",
        help="execution_count: a model instance runs only while the resources of its rate_limiter are free.",
    )
    rate_limit_resource: tuple[RateLimitResource, ...] = repeatable(
        rate_limit_resource,
        group=SCHEDULING,
        metavar="<resource>:<count>[:<device>]",
        help="How many units of a resource there are; where absent, as many as the instance that needs most. May be "
        "given several times.",
    )

    def cache(self) -> CacheChoice | None:
        """The response cache, if there is to be one. Raises UsageError."""
        return cache_choice(self.cache_config, self.response_cache_byte_size)
