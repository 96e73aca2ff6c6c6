"""Builds the model that speed is measured with: `python -m tests.bench.language.build_model FOLDER`, from the root.

A Llama of some 30 million parameters with random weights, as Hugging Face has it in `FOLDER/huggingface` and for
OpenVINO GenAI in `FOLDER/openvino`; and in `FOLDER/tiny` the tiny one of the tests, as of Hugging Face. It needs torch,
transformers and `optimum-intel[openvino]`, which the benchmark itself does not, and so may run in an environment of its
own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.backends.engines.tiny_llama.build import SEED, UNUSED, make_model, make_tokenizer

VOCABULARY = 9161
CONTEXT = 2048


def main() -> None:
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    target = Path(sys.argv[1])
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1216,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    model = LlamaForCausalLM(config).half().float().eval()
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=2)
    print(f"{sum(each.numel() for each in model.parameters()):,} parameters")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        made = Path(temporary, "made")
        model.save_pretrained(made / "huggingface")
        make_tokenizer(made / "huggingface", VOCABULARY)
        subprocess.run(
            [
                *(Path(sys.executable).with_name("optimum-cli"), "export", "openvino", "-m", made / "huggingface"),
                *("--task", "text-generation-with-past", "--weight-format", "fp16", made / "openvino"),
            ],
            check=True,
        )
        (made / "tiny").mkdir()
        make_tokenizer(made / "tiny")
        make_model(made / "tiny")
        for name in UNUSED:
            (made / "openvino" / name).unlink(missing_ok=True)
        made.rename(target)  # whole, or not there


if __name__ == "__main__":
    main()
