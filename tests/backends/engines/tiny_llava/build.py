"""Makes the tiny LLaVA of the tests anew: `python -m tests.backends.engines.tiny_llava.build`, from the project's root.

A language model of two layers that sees, with random weights, and the tokenizer of the tiny Llama. It needs torch,
transformers, pillow and `optimum-intel[openvino]`; `greedy.json` keeps what torch generates for pictures of one color.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.backends.engines.tiny_llama.build import BOS, make_tokenizer

HERE = Path(__file__).parent
MODEL = HERE / "model"
SEED = 7
SIDE, PATCH = 28, 14
IMAGE = "<image>"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{{ part['text'] if part['type'] == 'text' else '<image>' }}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NEW_TOKENS = 16
# Texts, and the color of each picture in them.
PROMPTS: tuple[tuple[str, tuple[tuple[int, int, int], ...]], ...] = (
    ("What is this?", ()),
    (f"What is {IMAGE} this?", ((255, 0, 0),)),
    (f"What is {IMAGE} this?", ((0, 64, 255),)),
    (f"{IMAGE} or {IMAGE}", ((255, 0, 0), (0, 64, 255))),
)
UNUSED = ("README.md", "openvino_config.json", "special_tokens_map.json", "processor_config.json")


def make_model(folder: Path, behind: str = "\n") -> list[dict[str, Any]]:
    """Saves the model; returns what it generates greedily, with the text `behind` each picture: OpenVINO GenAI adds a
    line's end there."""
    import torch
    from transformers import (
        AutoTokenizer,
        CLIPImageProcessor,
        CLIPVisionConfig,
        GenerationConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE]})
    place = tokenizer.convert_tokens_to_ids(IMAGE)
    torch.manual_seed(SEED)
    text = LlamaConfig(
        vocab_size=len(tokenizer) + -len(tokenizer) % 8,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=32,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=place,
        image_seq_length=(SIDE // PATCH) ** 2,
        vision_feature_select_strategy="default",
        tie_word_embeddings=False,
    )
    model = LlavaForConditionalGeneration(config).half().float().eval()
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=2)
    model.save_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    sizes = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    images = CLIPImageProcessor(**sizes)
    LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    ).save_pretrained(folder)
    return [_greedy(model, tokenizer, images, prompt, colors, behind) for prompt, colors in PROMPTS]


def _greedy(
    model: Any, tokenizer: Any, images: Any, prompt: str, colors: tuple[tuple[int, int, int], ...], behind: str
) -> dict[str, Any]:
    import torch
    from PIL import Image

    first, *rest = (tokenizer(each, add_special_tokens=False).input_ids for each in _parts(prompt, behind))
    ids = first + [each for part in rest for each in [model.config.image_token_index] * (SIDE // PATCH) ** 2 + part]
    pictures = [Image.new("RGB", (SIDE, SIDE), color) for color in colors]
    pixels = images(pictures, return_tensors="pt").pixel_values if pictures else None
    with torch.no_grad():
        out = model.generate(
            input_ids=torch.tensor([ids]),
            **({} if pixels is None else {"pixel_values": pixels}),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            eos_token_id=None,
        )
    tokens = out[0, len(ids) :].tolist()
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    return {"prompt": prompt, "colors": colors, "prompt_tokens": len(ids), "token_ids": tokens, "text": text}


def _parts(prompt: str, behind: str) -> list[str]:
    """What stands between the pictures."""
    return [f"{behind if place else BOS}{part}" for place, part in enumerate(prompt.split(IMAGE))]


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "tiny")
        folder.mkdir()
        make_tokenizer(folder)
        found = make_model(folder)
        shutil.rmtree(MODEL, ignore_errors=True)
        subprocess.run(
            [
                *(Path(sys.executable).with_name("optimum-cli"), "export", "openvino", "-m", folder),
                *("--task", "image-text-to-text", "--weight-format", "fp16", MODEL),
            ],
            check=True,
        )
    # OpenVINO GenAI reads the older file.
    processor = json.loads((MODEL / "processor_config.json").read_text())
    (MODEL / "preprocessor_config.json").write_text(json.dumps(processor["image_processor"], indent=1) + "\n")
    for name in UNUSED:
        (MODEL / name).unlink(missing_ok=True)
    (HERE / "greedy.json").write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
