"""The public names with their signatures, as text: `python -m tests.public.listing` writes `signatures.txt` anew.

`test_signatures.py` compares, so that no public signature changes by accident.
"""

from __future__ import annotations

import enum
import importlib
import inspect
from collections.abc import Collection, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ForwardRef, get_origin, is_typeddict

MODULES = (
    "trioton.backends",
    "trioton.caches",
    "trioton.engines",
    "trioton.errors",
    "trioton.job_stores",
    "trioton.jobs",
    "trioton.messages",
    "trioton.model_config",
    "trioton.ray",
    "trioton.repository_agents",
    "trioton.server",
    "trioton.testing",
)
RECORDED = Path(__file__).parent / "signatures.txt"
# What is no part of the public interface, although it has no underscore: `docs/api.md` says so. An empty text stands
# for the constructor.
NOT_PUBLIC: dict[str, Collection[str]] = {
    "Answer": {""},
    "ArrayBackend": {"batch_rule", "device_stream"},
    "AsyncModel": {""},
    "Backend": {
        *("attend", "begin", "can_overlap", "execute_overlapping", "execute_decoupled_overlapping"),  # provisional
        *("takes_device_tensors", "takes_shared_tensors"),
    },
    "JobEvents": {""},
    "Jobs": {""},
    "InferenceRequest": {
        *("caller", "charge", "device_outputs", "gen_ai", "has_device_inputs", "response_memory", "template", "trace"),
    },
    "InstanceThread": {"has_calls", "join", "post", "submit"},
    "Model": {""},
    "ModelSource": {"devices", "for_device", "resources", "services"},
    "Settings": {"model", "reload", "debug_delays"},
}
# Longer ones have a line for each parameter.
WIDTH = 100
EMPTY = inspect.Parameter.empty


def listing() -> str:
    """Every public name, by its module."""
    parts = {name: _module(importlib.import_module(name)) for name in MODULES}
    return "\n\n".join("\n".join([f"# {name}", *lines]) for name, lines in parts.items()) + "\n"


def public_names(module: ModuleType) -> list[str]:
    names: list[str] = module.__all__
    return names


def _module(module: ModuleType) -> Iterator[str]:
    for name in public_names(module):
        value = getattr(module, name)
        if inspect.isclass(value) and get_origin(value) is None:
            yield from _class(name, value)
        elif inspect.isfunction(value):
            yield from _callable(name, value)
        else:
            yield f"{name}: {type(value).__name__ if isinstance(value, int) else 'type alias'}"


def _class(name: str, cls: type[Any]) -> Iterator[str]:
    if issubclass(cls, enum.Enum):
        yield f"class {name}: {', '.join(member.name for member in cls)}"
        return
    if is_typeddict(cls):
        yield f"class {name}(TypedDict)"
        yield from (f"    {field}: {text}" for field, text in sorted(_typed_fields(cls).items()))
        return
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    yield f"class {name}({bases})"
    hidden = {name for base in cls.__mro__ for name in NOT_PUBLIC.get(base.__name__, ())}
    if not (cls.__init__ is Exception.__init__ or getattr(cls, "_is_protocol", False) or "" in hidden):
        yield from (f"    {line}" for line in _callable("", cls, _all_annotations(cls), hidden))
    for member in sorted(vars(cls)):
        if not member.startswith("_") and member not in hidden:
            yield from (f"    {line}" for line in _member(cls, member))


def _member(cls: type[Any], name: str) -> Iterator[str]:
    """An attribute of the class itself; those of its bases are listed there."""
    if cls.__name__ == "Settings" and name != "from_flags":  # the fields are in its signature, all else is private
        return
    value = vars(cls)[name]
    if isinstance(value, property):
        yield f"{name}: {_annotation(_return(value.fget))}"
    elif isinstance(value, classmethod | staticmethod):
        yield from _callable(name, getattr(cls, name))
    elif inspect.isfunction(value):
        yield from _callable(name, value)
    elif name not in _fields(cls):
        yield f"{name}: {_annotation(_all_annotations(cls).get(name, EMPTY))} = {_default(value)}"


def _callable(
    name: str, value: Any, fields: dict[str, Any] | None = None, hidden: Collection[str] = ()
) -> Iterator[str]:
    signature = inspect.signature(value)
    shown = [each for each in signature.parameters.values() if each.name not in hidden]
    parameters = [_parameter(each, fields or {}) for each in shown]
    ending = "" if inspect.isclass(value) else f" -> {_annotation(signature.return_annotation)}"
    beginning = f"async {name}" if inspect.iscoroutinefunction(value) else name
    line = f"{beginning}({', '.join(parameters)}){ending}"
    if len(line) <= WIDTH:
        yield line
        return
    yield f"{beginning}("
    yield from (f"    {parameter}," for parameter in parameters)
    yield f"){ending}"


def _parameter(parameter: inspect.Parameter, fields: dict[str, Any]) -> str:
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
    text = stars.get(parameter.kind.name, "") + parameter.name
    annotation = fields.get(parameter.name, parameter.annotation)
    if annotation is not EMPTY:
        text += f": {_annotation(annotation)}"
    if parameter.default is not EMPTY:
        text += f" = {_default(parameter.default)}"
    return f"{text} [keyword]" if parameter.kind is inspect.Parameter.KEYWORD_ONLY else text


def _fields(cls: type[Any]) -> set[str]:
    """What its constructor's signature shows already."""
    is_record = hasattr(cls, "__struct_fields__") or hasattr(cls, "__dataclass_fields__")
    return set(inspect.signature(cls).parameters) if is_record else set()


def _all_annotations(cls: type[Any]) -> dict[str, Any]:
    """As they are written in the source, for which a class and its bases have them as texts."""
    return {name: text for base in reversed(cls.__mro__) for name, text in inspect.get_annotations(base).items()}


def _typed_fields(cls: type[Any]) -> dict[str, str]:
    found = inspect.get_annotations(cls)
    return {name: each.__forward_arg__ if isinstance(each, ForwardRef) else str(each) for name, each in found.items()}


def _return(function: Any) -> Any:
    return inspect.signature(function).return_annotation


def _annotation(annotation: Any) -> str:
    if annotation is EMPTY:
        return "?"
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _default(value: Any) -> str:
    """Constants as they are; what is made, or differs from machine to machine, as dots."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, str):
        return repr(value) if "/" not in value else "..."
    if value is None or isinstance(value, bool | int | float | bytes):
        return repr(value)
    if isinstance(value, tuple | frozenset | dict) and not value:
        return repr(value)
    return "..."


if __name__ == "__main__":
    RECORDED.write_text(listing())
