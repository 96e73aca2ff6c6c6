"""Pictures for vLLM: whether its model sees, and prompts that show it some."""

from __future__ import annotations

from typing import Any

from PIL import Image as Pillow
from vllm.inputs import TokensPrompt, tokens_input
from vllm.multimodal import MULTIMODAL_REGISTRY

from .engine import Generation, Image, Refused


class VllmPictures:
    """Those of one model.

    Attributes:
        are_seen: the model takes pictures, and its options allow them.
    """

    def __init__(self, model_config: Any) -> None:
        self.are_seen = False
        self._mark: int | None = None
        if model_config.is_multimodal_model:
            limits = MULTIMODAL_REGISTRY.create_processor(model_config).info.allowed_mm_limits
            self.are_seen = limits.get("image", 0) > 0
            config = model_config.hf_config
            self._mark = getattr(config, "image_token_id", getattr(config, "image_token_index", None))

    def prompt(self, generation: Generation) -> Any:
        """The prompt as vLLM takes it, which puts a picture's tokens in the place of its mark. Raises Refused."""
        token_ids = list(generation.token_ids)
        marks, count = 0 if self._mark is None else token_ids.count(self._mark), len(generation.images)
        if marks > count:  # vLLM would notice it in its engine only, which perhaps does not survive that
            raise Refused(f"the prompt has {marks} marks of pictures, and there are {count} pictures with it")
        if generation.images:
            pictures = [_picture(each) for each in generation.images]
            return TokensPrompt(prompt_token_ids=token_ids, multi_modal_data={"image": pictures})
        return tokens_input(token_ids)

    @staticmethod
    def judged(error: Exception, generation: Generation) -> Exception:
        """What vLLM has raised for a prompt, or the client's mistake that it stands for: an assertion where there is no
        mark for a picture."""
        if isinstance(error, AssertionError) and generation.images:
            return Refused(f"the prompt has fewer marks of pictures than there are with it: {error}")
        return error


def _picture(image: Image) -> Any:
    return Pillow.frombytes("RGB", (image.width, image.height), bytes(image.pixels))
