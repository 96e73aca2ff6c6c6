"""Folders of Hugging Face as torch modules, by the library transformers. Nothing is fetched, and no code of the folder
runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trioton.convert.tensors import TensorSpec

_CHANNELS = 3


class TransformersModule(torch.nn.Module):
    """The model of the class that the folder's configuration names, with its tensors as the only outputs: no caches."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @classmethod
    def load(cls, folder: Path) -> TransformersModule:
        """Raises ValueError: its inputs are of no kind that is known here."""
        import transformers

        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        names = [name for name in config.architectures or () if hasattr(transformers, name)]
        kind = getattr(transformers, names[0]) if names else transformers.AutoModel
        model = kind.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
        model.config.use_cache = False
        if model.main_input_name == "input_ids":
            return _OfTokens(model)
        if model.main_input_name == "pixel_values":
            return _OfPictures(model)
        raise ValueError(
            f"{type(model).__name__} takes '{model.main_input_name}', neither tokens nor pictures: convert a factory "
            "that makes it, <file>.py:<name>, with --input or --samples"
        )

    def inputs(self) -> Sequence[TensorSpec]:
        """As the configuration has them, with the batch dimension."""
        raise NotImplementedError

    def _tensors(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.model(**inputs, return_dict=True)
        return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


class _OfTokens(TransformersModule):
    def inputs(self) -> Sequence[TensorSpec]:
        dims = ("batch", "tokens")
        return [TensorSpec("input_ids", "INT64", dims), TensorSpec("attention_mask", "INT64", dims)]

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        return self._tensors(input_ids=input_ids, attention_mask=attention_mask)


class _OfPictures(TransformersModule):
    def inputs(self) -> Sequence[TensorSpec]:
        config = self.model.config
        size = getattr(config, "image_size", None)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        channels = getattr(config, "num_channels", _CHANNELS)
        return [TensorSpec("pixel_values", "FP32", ("batch", channels, height or "height", width or "width"))]

    def forward(self, pixel_values: torch.Tensor) -> dict[str, torch.Tensor]:
        return self._tensors(pixel_values=pixel_values)
