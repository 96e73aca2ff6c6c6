"""Makes the tiny Llama of the tests anew: `python tests/backends/engines/tiny_llama/build.py`, from the project's root.

With the name of a folder behind it, it only writes the model there as a Hugging Face one, which torch and transformers
are enough for, and sees that it generates what is recorded.

Two layers with random weights, and a tokenizer trained on the project's pages. It needs torch, transformers and
`optimum-intel[openvino]`, which the tests do not: `greedy.json` keeps what torch generates. The weights are rounded to
16 bits before that, so that the compressed files hold the very same numbers.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
MODEL = HERE / "model"
DOCS = HERE.parents[3] / "docs"
VOCABULARY = 2048
CONTEXT = 512
SEED = 7
BOS, EOS, PAD, START, END = "<|bos|>", "<|eos|>", "<|pad|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PROMPTS = (
    "A model repository is a folder of models.",
    "The scheduler",
    "Größe, 大きさ, 🙂",
    "x",
)
NEW_TOKENS = 32
# What optimum writes beside it, and nobody reads here.
UNUSED = ("README.md", "openvino_config.json", "special_tokens_map.json")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def make_tokenizer(folder: Path, vocabulary: int = VOCABULARY) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BOS, EOS, PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(path) for path in sorted(DOCS.rglob("*.md"))], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(f"{BOS} $A", special_tokens=[(BOS, 0)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD, model_max_length=CONTEXT
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def make_model(folder: Path) -> list[dict[str, object]]:
    """Saves the model; returns what it generates greedily."""
    import torch
    from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    model = LlamaForCausalLM(config).half().float().eval()
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=2)
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.no_grad():
            out = model.generate(
                ids, do_sample=False, max_new_tokens=NEW_TOKENS, output_logits=True, return_dict_in_generate=True
            )
        tokens = out.sequences[0, ids.shape[1] :].tolist()
        steps = zip(out.logits, tokens, strict=True)
        logprobs = [float(torch.log_softmax(each[0], -1)[token]) for each, token in steps]
        found.append(
            {
                "prompt": prompt,
                "prompt_token_ids": ids[0].tolist(),
                "token_ids": tokens,
                "text": tokenizer.decode(tokens, skip_special_tokens=True),
                "logprobs": [round(each, 5) for each in logprobs],
            }
        )
    return found


def write_weights(folder: Path) -> None:
    """The model as it is recorded, in the form of transformers."""
    for name in TOKENIZER:
        shutil.copy(MODEL / name, folder / name)
    recorded = json.loads((HERE / "greedy.json").read_text())
    for made, known in zip(make_model(folder), recorded, strict=True):
        if made["token_ids"] != known["token_ids"]:
            sys.exit(f"{known['prompt']!r} goes on with {made['token_ids']}, but {known['token_ids']} are recorded")


def main() -> None:
    if len(sys.argv) > 1:
        write_weights(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "tiny")
        folder.mkdir()
        make_tokenizer(folder)
        found = make_model(folder)
        shutil.rmtree(MODEL, ignore_errors=True)
        subprocess.run(
            [
                *(Path(sys.executable).with_name("optimum-cli"), "export", "openvino", "-m", folder),
                *("--task", "text-generation-with-past", "--weight-format", "fp16", MODEL),
            ],
            check=True,
        )
    for name in UNUSED:
        (MODEL / name).unlink(missing_ok=True)
    (HERE / "greedy.json").write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
