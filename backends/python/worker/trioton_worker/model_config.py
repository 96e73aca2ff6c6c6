"""`ModelConfig`: the argument and result of `auto_complete_config`.

Wraps the dictionary of the configuration's JSON text. Changes made in the dictionary itself count as well.
"""

from __future__ import annotations

import json
from typing import Any


class ModelConfig:
    def __init__(self, model_config: str) -> None:
        self._model_config: dict[str, Any] = json.loads(model_config)

    @property
    def _where(self) -> str:
        return f"in auto-complete-config function for model '{self._model_config.get('name', '')}'"

    def as_dict(self) -> dict[str, Any]:
        """The configuration itself, not a copy."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Raises ValueError where the configuration has a larger one."""
        configured = self._model_config.get("max_batch_size", 0)
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but {self._where} specified max_batch_size "
                f"{max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Raises ValueError where the configuration chose another scheduler."""
        for choice in ("sequence_batching", "ensemble_scheduling"):
            if choice in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{choice}', but auto-complete-config function for "
                    f"model '{self._model_config.get('name', '')}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: dict[str, Any]) -> None:
        """Add an input of `name`, `data_type`, `dims` and perhaps `optional`, or complete the one of that name.

        Raises ValueError where it contradicts the configuration.
        """
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output: dict[str, Any]) -> None:
        """Add an output of `name`, `data_type` and `dims`, or complete the one of that name.

        Raises ValueError where it contradicts the configuration.
        """
        self._add("output", output, ("name", "data_type", "dims"))

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        """Set `decoupled`. Raises ValueError where the configuration has it otherwise."""
        for key in transaction_policy_dict:
            if key != "decoupled":
                raise ValueError(f"model transaction property {self._where} contains property other than 'decoupled'.")
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if policy.setdefault("decoupled", decoupled) != decoupled:
            raise ValueError(
                "trying to change decoupled property in auto-complete-config for model "
                f"'{self._model_config.get('name', '')}', which is already set to '{policy['decoupled']}'."
            )

    def _add(self, kind: str, given: dict[str, Any], allowed: tuple[str, ...]) -> None:
        name = given.get("name")
        if any(key not in allowed for key in given):
            listed = "', '".join(allowed[:-1])
            raise ValueError(
                f"{kind} '{name or ''}' {self._where} contains property other than '{listed}' and '{allowed[-1]}'."
            )
        if name is None:
            raise ValueError(f"{kind} {self._where} is missing 'name' property.")
        for key in ("data_type", "dims"):
            if key not in given:
                raise ValueError(f"{kind} '{name}' {self._where} is missing '{key}' property.")
        tensors = self._model_config.setdefault(kind, [])
        for tensor in tensors:
            if tensor.get("name") == name:
                self._complete(kind, tensor, given)
                return
        tensors.append(dict(given))

    def _complete(self, kind: str, tensor: dict[str, Any], given: dict[str, Any]) -> None:
        model, name = self._model_config.get("name", ""), given["name"]
        configured = tensor.get("data_type", "TYPE_INVALID")
        if configured not in ("TYPE_INVALID", given["data_type"]):
            raise ValueError(
                f"unable to load model '{model}', configuration expects datatype {configured} for {kind} '{name}', "
                f"model provides {given['data_type']}"
            )
        dims = tensor.get("dims") or given["dims"]
        if list(dims) != list(given["dims"]):
            raise ValueError(
                f"model '{model}', tensor '{name}': the model expects dims {list(given['dims'])} but the model "
                f"configuration specifies dims {list(dims)}"
            )
        if "optional" in given:
            if tensor.get("optional", given["optional"]) != given["optional"]:
                raise ValueError(
                    f"model '{model}', tensor '{name}': the model expects optional {given['optional']} but the model "
                    f"configuration specifies optional {tensor['optional']}"
                )
            tensor["optional"] = given["optional"]
        tensor["data_type"] = given["data_type"]
        tensor["dims"] = dims
