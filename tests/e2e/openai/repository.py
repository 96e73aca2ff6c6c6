"""Builds a repository of small text models: scripted, one that is not decoupled, an ensemble, embeddings, scores."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.e2e.openai.encoder import add_cross_encoder, add_sentence_encoders

SCRIPTED = Path(__file__).parent / "scripted" / "1" / "model.py"

CHATML = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<call>{{ call.function.arguments.city }}</call>{% endfor %}</end>"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
OTHER_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}"
    "{% endif %}[{{ message.role | upper }}] {{ message.content }} {% endfor %}{{ style }}"
)

# Answers by what is in the prompt. Pieces of words, of tags and of JSON, as tokens come.
SCRIPT: Mapping[str, Sequence[str]] = {
    "say hello": ["Hello", ",", " wor", "ld", "! \N{SMILING FACE WITH SMILING EYES}"],
    "weather": [
        "Let me see.",
        "<tool",
        '_call>\n{"name": "get',
        '_weather", "arguments": {"ci',
        'ty": "Ber',
        'lin"}}',
        "\n</tool_call>",
    ],
    "think": ["<thi", "nk>", "Let me ", "think.", "</think>", "It is ", "42."],
    "json please": ['{"name": ', '"Ada", ', '"age": 36}'],
    "call any": ['[{"name": "get_weather", ', '"parameters": {"city": ', '"Rome"}}]'],
    "call that": ['{"city": ', '"Oslo"}'],
    "fail late": ["A", "B", "FAIL"],
    "fail now": ["FAIL"],
    "quote": ['a"b\\c\n', "\t\N{LATIN SMALL LETTER E WITH ACUTE}"],
}

VLLM_INPUTS = """
input [
  {{ name: "text_input", data_type: TYPE_STRING, dims: [ 1 ] }},
  {{ name: "stream", data_type: TYPE_BOOL, dims: [ 1 ], optional: true }},
  {{ name: "sampling_parameters", data_type: TYPE_STRING, dims: [ 1 ], optional: true }},
  {{ name: "exclude_input_in_output", data_type: TYPE_BOOL, dims: [ 1 ], optional: true }},
  {{ name: "return_finish_reason", data_type: TYPE_BOOL, dims: [ 1 ], optional: true }},
  {{ name: "return_logprobs", data_type: TYPE_BOOL, dims: [ 1 ], optional: true }},
  {{ name: "return_num_input_tokens", data_type: TYPE_BOOL, dims: [ 1 ], optional: true }},
  {{ name: "return_num_output_tokens", data_type: TYPE_BOOL, dims: [ 1 ], optional: true }}
]
output [
  {{ name: "text_output", data_type: TYPE_STRING, dims: [ -1 ] }},
  {{ name: "finish_reason", data_type: TYPE_STRING, dims: [ -1 ] }},
  {{ name: "logprobs", data_type: TYPE_STRING, dims: [ -1 ] }},
  {{ name: "num_input_tokens", data_type: TYPE_UINT32, dims: [ 1 ] }},
  {{ name: "num_output_tokens", data_type: TYPE_UINT32, dims: [ -1 ] }}
]
"""

PLAIN = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        prompt = pb_utils.get_input_tensor_by_name(request, "PROMPT").as_numpy().reshape(-1)[0].decode()
        if "refuse" in prompt:
            return pb_utils.InferenceResponse([], pb_utils.TritonError("no", pb_utils.TritonError.INVALID_ARG))
        value = np.array([[prompt.upper().encode()]], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("ANSWER", value)])
"""

VECTORS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1)[0].decode()
        vector = np.array([[len(text), text.count("a"), 0.5]], dtype=np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("VECTOR", vector)])
"""

EMBEDDING_REQUESTS = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "embedding_request").as_numpy().reshape(-1)[0]
            wanted = json.loads(given)
            vector = [float(len(wanted["input"])), 0.25, *wanted["pooling_params"].get("dimensions", [])]
            outputs = [
                pb_utils.Tensor("text_output", np.array([json.dumps(vector).encode()], dtype=object)),
                pb_utils.Tensor("num_input_tokens", np.array([3], dtype=np.uint32)),
            ]
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse(outputs))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def build_text_repository(folder: Path) -> None:
    """`chat` and `other` have tokenizers and templates of their own, `plain` and `joined` neither."""
    add_scripted(folder, "chat", CHATML, tool_call_parser="hermes", reasoning_parser="think")
    (folder / "chat" / "1" / "multi_lora.json").write_text(json.dumps({"poet": "/adapters/poet", "law": "law"}))
    add_scripted(folder, "other", OTHER_TEMPLATE, max_model_len="40")
    add_python(folder, "plain", PLAIN, _plain_config())
    add_vectors(folder)
    add_python(folder, "embedder", EMBEDDING_REQUESTS, _embedder_config())
    add_cross_encoder(folder)
    add_sentence_encoders(folder)
    (folder / "joined" / "1").mkdir(parents=True)
    (folder / "joined" / "config.pbtxt").write_text(_ensemble_config())


def add_scripted(folder: Path, name: str, template: str, **parameters: str) -> None:
    """A decoupled model with a tokenizer of its own, in its version's folder."""
    version = folder / name / "1"
    version.mkdir(parents=True)
    shutil.copy(SCRIPTED, version / "model.py")
    (version / "script.json").write_text(json.dumps(SCRIPT))
    add_tokenizer(version, template)
    given = "".join(
        f'parameters: {{ key: "{key}", value: {{ string_value: "{value}" }} }}\n' for key, value in parameters.items()
    )
    config = (
        f'name: "{name}"\nbackend: "python"\nmax_batch_size: 0\n{VLLM_INPUTS.replace("{{", "{").replace("}}", "}")}\n'
    )
    config += (
        f"model_transaction_policy {{ decoupled: true }}\ninstance_group [ {{ count: 1, kind: KIND_CPU }} ]\n{given}"
    )
    (folder / name / "config.pbtxt").write_text(config)


def add_vectors(folder: Path) -> None:
    add_python(folder, "vectors", VECTORS, _vectors_config())


def add_python(folder: Path, name: str, source: str, config: str) -> None:
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "1" / "model.py").write_text(source)
    (folder / name / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "python"\n{config}')


def add_tokenizer(folder: Path, template: str) -> None:
    """A byte-level tokenizer, trained on a few sentences, with a beginning-of-text token that it adds itself."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["say hello to the world", "the weather in Berlin", "tell me a story"] * 4, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 256}))


def _parameters(**values: str) -> str:
    return "".join(
        f'parameters: {{ key: "{key}", value: {{ string_value: "{value}" }} }}\n' for key, value in values.items()
    )


def _plain_config() -> str:
    return (
        'max_batch_size: 8\ninput [ { name: "PROMPT", data_type: TYPE_STRING, dims: [ 1 ] } ]\n'
        'output [ { name: "ANSWER", data_type: TYPE_STRING, dims: [ 1 ] } ]\n'
        + _parameters(
            openai_text_input="PROMPT",
            openai_text_output="ANSWER",
            chat_template="{% for message in messages %}{{ message.content }}. {% endfor %}",
        )
    )


def _vectors_config() -> str:
    return (
        'max_batch_size: 8\ndynamic_batching { }\ninput [ { name: "TEXT", data_type: TYPE_STRING, dims: [ 1 ] } ]\n'
        'output [ { name: "VECTOR", data_type: TYPE_FP32, dims: [ 3 ] } ]\n'
        + _parameters(openai_embedding_input="TEXT", openai_embedding_output="VECTOR")
    )


def _embedder_config() -> str:
    return (
        'max_batch_size: 0\ninput [ { name: "embedding_request", data_type: TYPE_STRING, dims: [ 1 ] } ]\n'
        'output [ { name: "text_output", data_type: TYPE_STRING, dims: [ -1 ] },\n'
        '  { name: "num_input_tokens", data_type: TYPE_UINT32, dims: [ 1 ] } ]\n'
        "model_transaction_policy { decoupled: true }\n"
    )


def _ensemble_config() -> str:
    return (
        'name: "joined"\nplatform: "ensemble"\nmax_batch_size: 8\n'
        'input [ { name: "text_input", data_type: TYPE_STRING, dims: [ 1 ] } ]\n'
        'output [ { name: "text_output", data_type: TYPE_STRING, dims: [ 1 ] } ]\n'
        'ensemble_scheduling { step [ { model_name: "plain", model_version: -1,\n'
        '  input_map { key: "PROMPT", value: "text_input" }, output_map { key: "ANSWER", value: "text_output" } } ] }\n'
    )
