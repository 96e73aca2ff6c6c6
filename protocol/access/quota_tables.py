"""Reads the quotas of an auth keys file: tables `[quotas.<name>]`, with `[quotas.<name>.models.<model>]` in them."""

from __future__ import annotations

from typing import Any, Final

from protocol.access.tables import Mistake, number_text, read_number, read_table, refuse_unknown, type_word
from protocol.quotas.meters import Rate
from protocol.quotas.quota import Quota, Unit

MODELS: Final = "models"
_RATE_FIELDS: Final = ("limit", "seconds", "burst")
# A month. What is used is kept in memory only, so longer times would promise too much.
MAX_SECONDS: Final = 31 * 24 * 3600
_MAX_LIMIT: Final = 1e15


def read_quotas(document: dict[str, Any]) -> dict[str, Quota]:
    """The quotas of a file by their names.

    Raises:
        Mistake: a table is not as it must be.
    """
    tables = read_table(document.get("quotas", {}), "quotas", "[quotas.<name>]")
    return {name: _quota(name, content) for name, content in tables.items()}


def _quota(name: str, content: object) -> Quota:
    where = f"quotas.{name}"
    table = read_table(content, where)
    refuse_unknown(table, (*Unit, MODELS), "field", where)
    models = read_table(table.get(MODELS, {}), f"{where}.{MODELS}", f"[{where}.{MODELS}.<model>]")
    own = {model: _model_limits(f"{where}.{MODELS}.{model}", limits) for model, limits in models.items()}
    limits = _limits({unit: value for unit, value in table.items() if unit != MODELS}, where)
    if not limits and not own:
        raise Mistake(f"[{where}] limits nothing, expected any of {', '.join(Unit)}")
    return Quota(name, limits, own)


def _model_limits(where: str, content: object) -> dict[Unit, Rate | int]:
    table = read_table(content, where)
    refuse_unknown(table, tuple(Unit), "field", where)
    return _limits(table, where)


def _limits(table: dict[str, Any], where: str) -> dict[Unit, Rate | int]:
    return {
        unit: _places(table[unit], where) if unit is Unit.CONCURRENT_REQUESTS else _rate(table[unit], where, unit)
        for unit in Unit
        if unit in table
    }


def _places(value: object, where: str) -> int:
    unit = Unit.CONCURRENT_REQUESTS
    if type(value) is not int:
        raise Mistake(f"[{where}] '{unit}' must be an integer, got {type_word(value)}")
    if value < 1:
        raise Mistake(f"[{where}] '{unit}' must be at least 1, got {number_text(value)}")
    if value > _MAX_LIMIT:
        raise Mistake(f"[{where}] '{unit}' must be at most {_MAX_LIMIT:g}, got {number_text(value)}")
    return value


def _rate(value: object, where: str, unit: Unit) -> Rate:
    if not isinstance(value, dict):
        raise Mistake(f"[{where}] '{unit}' must be a table {{ limit = 600, seconds = 60 }}, got {type_word(value)}")
    place = f"{where}.{unit}"
    refuse_unknown(value, _RATE_FIELDS, "field", place)
    for name in ("limit", "seconds"):
        if name not in value:
            raise Mistake(f"[{place}] has no '{name}', expected limit and seconds")
    limit = read_number(value, "limit", place, most=_MAX_LIMIT)
    seconds = read_number(value, "seconds", place, most=MAX_SECONDS)
    burst = read_number(value, "burst", place, most=_MAX_LIMIT) if "burst" in value else limit
    if unit is Unit.REQUESTS and burst < 1:
        if "burst" in value:
            raise Mistake(f"[{place}] 'burst' must be at least 1, got {burst:g}")
        burst = 1.0  # less than one in that time
    return Rate(limit, seconds, burst)
