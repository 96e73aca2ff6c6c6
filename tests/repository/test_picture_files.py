"""What `config.json` says of the tokens of pictures."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.text.pictures import PictureTokens
from repository.picture_files import picture_tokens

CLIP = {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14}
SIGLIP = {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14}


@pytest.mark.parametrize(
    ("vision", "members", "size"),
    [
        (CLIP, {}, 576),
        (CLIP, {"vision_feature_select_strategy": "full"}, 577),
        (SIGLIP, {"vision_feature_select_strategy": "full"}, 729),
    ],
)
def test_models_whose_pictures_take_the_same(vision: dict[str, Any], members: dict[str, Any], size: int) -> None:
    given = {"model_type": "llava", "image_token_index": 32000, "vision_config": vision, **members}
    assert picture_tokens(given) == PictureTokens(32000, size)


@pytest.mark.parametrize(
    "members",
    [
        {"model_type": "llava_next"},
        {"model_type": ["llava"]},
        {"vision_config": None},
        {"vision_config": {**CLIP, "patch_size": 0}},
        {"vision_config": {**CLIP, "image_size": "336"}},
        {"vision_config": {**CLIP, "image_size": 10**20}},
        {"vision_config": {**CLIP, "image_size": 10**7}},
        {"image_token_index": None},
        {"image_token_index": -200},
    ],
)
def test_what_says_nothing(members: dict[str, Any]) -> None:
    given = {"model_type": "llava", "image_token_index": 32000, "vision_config": CLIP, **members}
    assert picture_tokens(given) is None
