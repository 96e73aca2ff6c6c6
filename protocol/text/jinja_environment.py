"""Jinja environment of chat templates: the sandbox, and the filters and functions that such templates expect.

Imported only where a chat template is compiled, for it needs Jinja.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

# Elements of a repeated string or list, and bits of a product or power.
_MAX_REPEATED = 1 << 20
_MAX_BITS = 4096


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the model itself says, for training; here it is only shown."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _ChatEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_BITS:
                raise SecurityError(f"expected a number of at most {_MAX_BITS} bits")
        for sized, count in ((left, right), (right, left)):
            if isinstance(sized, str | list | tuple) and isinstance(count, int) and len(sized) * count > _MAX_REPEATED:
                raise SecurityError(f"expected a repetition of at most {_MAX_REPEATED} elements")
        return super().call_binop(context, operator, left, right)


class _Namespace(Namespace):
    """Without names of the interpreter's own, which would be a way out of the sandbox."""

    def __init__(*args: Any, **names: Any) -> None:  # without a name for `self`, which a template may give
        given = dict(*args[1:], **names)
        for name in given:
            _check_name(name)
        Namespace.__init__(args[0], given)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no name that begins with an underscore: '{name}'")


def _raise_exception(message: Any) -> None:
    raise TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it stands in a prompt: unlike Jinja's own filter, without escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "raise_exception": _raise_exception,
    "strftime_now": _strftime_now,
    "namespace": _Namespace,
}


@cache
def chat_environment() -> ImmutableSandboxedEnvironment:
    """The one environment of all chat templates; it is not changed once it is made."""
    environment = _ChatEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols], cache_size=0
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(_FUNCTIONS)
    return environment
