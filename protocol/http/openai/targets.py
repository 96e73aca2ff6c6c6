"""Targets: the model that a request names, by its own name or by that of one of its adapters.

An adapter is named alone, as vLLM's server has it, or as `<model><separator><adapter>`, as Triton's frontend has it
where a separator is set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from protocol.core import InferenceCore
from protocol.errors import NotFound, NotHere, Unavailable, Unsupported, shown_name
from protocol.http.openai.errors import FieldError, ModelNotFound
from protocol.text.model import TextFacts, TextModel


@dataclass(frozen=True, slots=True)
class Target:
    """`name` is what the client calls it."""

    name: str
    text: TextModel
    adapter: str = ""

    @property
    def model(self) -> str:
        """The name by which the core knows the model, which may be in a namespace."""
        return self.text.name if self.adapter else self.name


class Listed(NamedTuple):
    """A model, or one of its adapters, by the name that it is listed under."""

    name: str
    text: TextFacts
    adapter: str = ""


async def find_target(core: InferenceCore, name: str | None, separator: str = "") -> Target:
    """Without a name, the only text model that there is.

    Raises:
        ModelNotFound: there is no such model or adapter.
        FieldError: no model is named, and there is not just one; or it has no text.
        ServerError: the model is not ready.
    """
    if name is None:
        return await _only(core)
    try:
        return Target(name, await core.text_model(name))
    except NotFound:
        target = await _adapter(core, name, separator)
    except NotHere:
        raise
    except Unsupported as error:
        raise FieldError(error.message, "model") from None
    if target is None:
        raise ModelNotFound(f"Unknown model: {shown_name(name)}")
    return target


def sees_pictures(core: InferenceCore, target: Target) -> bool:
    """The model has an input for pictures."""
    return target.text.names.image in {each.name for each in core.model_metadata(target.model).inputs}


async def list_targets(core: InferenceCore, separator: str = "") -> Iterator[Listed]:
    """All models and adapters."""
    return _listed(await core.text_models(), separator)


def _listed(texts: Sequence[TextFacts], separator: str) -> Iterator[Listed]:
    for text in texts:
        yield Listed(text.name, text)
        for adapter in text.adapters:
            yield Listed(f"{text.name}{separator}{adapter}" if separator else adapter, text, adapter)


def target_members(target: Target | Listed, owner: str) -> dict[str, Any]:
    """An entry of `/v1/models`."""
    text, adapter = target.text, target.adapter
    return {
        "id": target.name,
        "object": "model",
        "created": text.loaded_at,
        "owned_by": owner,
        "root": text.adapters[adapter] if adapter else text.name,
        "parent": text.name if adapter else None,
        "max_model_len": text.context_length,
        "permission": [],
    }


async def adapter_model(core: InferenceCore, name: str | None, adapter: str) -> str:
    """The model whose adapters are to be changed: the one that is named, else the only one that has this adapter, else
    the only one that takes any.

    Raises:
        ModelNotFound: there is none of this name.
        FieldError: none is named, and there is not just one.
    """
    if name is not None:
        return (await find_target(core, name)).model
    able = [text for text in await core.text_models() if text.takes_adapters]
    having = [text for text in able if adapter in text.adapters]
    if len(able) == 1 or len(having) == 1:
        return (having or able)[0].name
    if not able:
        raise FieldError("no model has LoRA adapters that can be changed while it is loaded", "model")
    models = ", ".join(f"'{text.name}'" for text in able)
    raise FieldError(f"'model': Field required: which one of {models} is meant", "model", "missing_required_parameter")


async def check_adapter_name(core: InferenceCore, model: str, adapter: str, separator: str) -> None:
    """Judge the name of an adapter that is to be added: where adapters are named alone it must not be another's.

    Raises:
        FieldError: a model has this name, or an adapter of another model.
    """
    if separator:
        return
    try:
        found = await find_target(core, adapter)
    except ModelNotFound:
        return
    except (Unavailable, FieldError) as error:
        raise FieldError(f"'{adapter:.256}' is taken: {error.message}", "lora_name") from None
    if not found.adapter:
        raise FieldError(f"'{adapter:.256}' is the name of a model", "lora_name")
    if found.text.name != model:
        raise FieldError(f"'{adapter:.256}' is an adapter of model '{found.text.name}'", "lora_name")


async def _only(core: InferenceCore) -> Target:
    texts = await core.text_models()
    if len(texts) == 1:
        return Target(texts[0].name, await core.text_model(texts[0].name))
    raise FieldError("'model': Field required", "model", "missing_required_parameter")


async def _adapter(core: InferenceCore, name: str, separator: str) -> Target | None:
    texts = await core.text_models()
    found = [target for text in texts if (target := _of_model(text, name, separator)) is not None] if separator else []
    found = found or [Listed(name, text, name) for text in texts if name in text.adapters]
    if len(found) > 1:
        models = ", ".join(f"'{target.text.name}'" for target in found)
        raise FieldError(f"adapter '{shown_name(name)}' is one of several models: {models}", "model")
    if not found and separator and len(parts := name.split(separator)) == 2:
        base, adapter = parts
        if any(text.name == base for text in texts):
            raise ModelNotFound(f"Unknown LoRA: {shown_name(adapter)}; for model: {shown_name(name)}")
    return Target(name, await core.text_model(found[0].text.name), found[0].adapter) if found else None


def _of_model(text: TextFacts, name: str, separator: str) -> Listed | None:
    """The adapter that is named behind its model and a separator."""
    adapter = name.removeprefix(f"{text.name}{separator}")
    return Listed(name, text, adapter) if adapter != name and adapter in text.adapters else None
