"""Picture files: what a model's `config.json` says of the tokens that pictures take, where all take the same.

Flow: configuration of Hugging Face -> [picture files] -> `protocol.text.pictures.PictureTokens`, or None: for most
models it depends on a picture's size, and only the engine knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.text.pictures import PictureTokens

# Models that cut any picture to one size, and give the model of language a token for each patch.
_FIXED = ("llava", "vipllava")
# Encoders that have a token of their own before those of the patches.
_WITH_CLASS = ("clip_vision_model",)
_LARGEST = 1 << 16


def picture_tokens(config: Mapping[str, Any]) -> PictureTokens | None:
    """None where nothing says it, or not in the form that is expected."""
    vision = config.get("vision_config")
    if config.get("model_type") not in _FIXED or not isinstance(vision, dict):
        return None
    mark = config.get("image_token_index", config.get("image_token_id"))
    side, patch = vision.get("image_size"), vision.get("patch_size")
    numbers = (mark, side, patch)
    if not all(type(each) is int and 0 <= each < _LARGEST << 8 for each in numbers) or not patch:
        return None
    drops_first = config.get("vision_feature_select_strategy", "default") != "full"
    size = (side // patch) ** 2 + (vision.get("model_type") in _WITH_CLASS) - drops_first
    return PictureTokens(mark, size) if 0 < size < _LARGEST else None
