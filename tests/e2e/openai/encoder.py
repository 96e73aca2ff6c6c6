"""A small encoder with random weights, in the form of BERT, that scores pairs or embeds: in ONNX, and by numpy."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[np.float32]

WIDTH, LENGTH, SENTENCE_LENGTH = 16, 64, 20
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz"]
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
MASKED = -1e9


@dataclass
class Encoder:
    """One layer of attention, then the first token to one number."""

    weights: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        random = np.random.default_rng(7)
        for name, shape in (
            ("words", (len(WORDS), WIDTH)),
            ("places", (LENGTH, WIDTH)),
            ("kinds", (2, WIDTH)),
            *((name, (WIDTH, WIDTH)) for name in ("query", "key", "value", "pooler")),
            ("head", (WIDTH, 1)),
        ):
            # Small ones for what attention is made of: it is to see more than one token.
            spread = 0.15 if name in ("query", "key") else 0.5
            self.weights[name] = random.normal(0, spread, shape).astype(np.float32)

    def hidden(self, ids: list[int], kinds: list[int]) -> Array:
        """A vector for each token, without anything that fills up."""
        w = self.weights
        hidden = w["words"][ids] + w["places"][: len(ids)] + w["kinds"][kinds]
        scores = (hidden @ w["query"]) @ (hidden @ w["key"]).T
        chances = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed: Array = (chances / chances.sum(axis=-1, keepdims=True)) @ (hidden @ w["value"])
        return mixed

    def logit(self, ids: list[int], kinds: list[int]) -> float:
        """Of one pair."""
        return float((np.tanh(self.hidden(ids, kinds)[0] @ self.weights["pooler"]) @ self.weights["head"])[0])

    def onnx(self, *, scores: bool) -> Any:
        """With `scores` it gives one number, as a cross-encoder, else the vectors of all tokens."""

        def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> Any:
            return helper.make_node(kind, inputs, [output], **attributes)

        shape = ["batch", "tokens"]
        nodes = [
            node("Gather", ["words", "input_ids"], "word"),
            node("Gather", ["kinds", "token_type_ids"], "kind"),
            node("Shape", ["input_ids"], "length", start=1, end=2),
            node("Slice", ["places", "zero", "length", "zero"], "place"),
            node("Add", ["word", "kind"], "typed"),
            node("Add", ["typed", "place"], "hidden"),
            *(node("MatMul", ["hidden", name], f"{name}s") for name in ("query", "key", "value")),
            node("Transpose", ["keys"], "turned", perm=[0, 2, 1]),
            node("MatMul", ["querys", "turned"], "alike"),
            node("Cast", ["attention_mask"], "there", to=TensorProto.FLOAT),
            node("Sub", ["one", "there"], "missing"),
            node("Mul", ["missing", "masked"], "lowered"),
            node("Unsqueeze", ["lowered", "axis"], "lowering"),
            node("Add", ["alike", "lowering"], "scores"),
            node("Softmax", ["scores"], "chances", axis=-1),
            node("MatMul", ["chances", "values"], "last_hidden_state"),
            node("Gather", ["last_hidden_state", "first"], "start", axis=1),
            node("MatMul", ["start", "pooler"], "dense"),
            node("Tanh", ["dense"], "pooled"),
            node("MatMul", ["pooled", "head"], "logits"),
        ]
        constants = {
            **self.weights,
            "zero": np.array([0]),
            "axis": np.array([1]),
            "first": np.array(0),
            "one": np.float32(1),
            "masked": np.float32(MASKED),
        }
        sizes: list[str | int | None]
        name, sizes = ("logits", ["batch", 1]) if scores else ("last_hidden_state", [*shape, WIDTH])
        graph = helper.make_graph(
            nodes,
            "encoder",
            [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in INPUTS],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
        )
        model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
        onnx.checker.check_model(model)
        return model


def pair_tokenizer() -> Any:
    """One token for each letter, joined as BERT's."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return made


def add_cross_encoder(folder: Path) -> None:
    """The model `cross_encoder`, which takes up to four pairs at once."""
    _write(folder / "cross_encoder" / "1", scores=True)
    (folder / "cross_encoder" / "config.pbtxt").write_text(
        'name: "cross_encoder"\nbackend: "onnxruntime"\nmax_batch_size: 4\n'
        'parameters: { key: "openai_score_output", value: { string_value: "logits" } }\n'
    )


def add_sentence_encoders(folder: Path) -> None:
    """`encoder` is an export and nothing else, `by_first_token` has the files of sentence-transformers beside it."""
    _write(folder / "encoder" / "1", scores=False)
    version = folder / "by_first_token" / "1"
    _write(version, scores=False)
    kinds = ("Transformer", "Pooling")
    modules = [
        {"idx": place, "name": str(place), "path": "1_Pooling" * place, "type": f"sentence_transformers.models.{kind}"}
        for place, kind in enumerate(kinds)
    ]
    (version / "modules.json").write_text(json.dumps(modules))
    (version / "1_Pooling").mkdir()
    (version / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (version / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": SENTENCE_LENGTH}))
    (folder / "by_first_token" / "config.pbtxt").write_text(
        'backend: "onnxruntime"\nmax_batch_size: 3\n'
        'parameters: { key: "openai_embedding_dimensions", value: { string_value: "4, 8" } }\n'
    )


def _write(version: Path, *, scores: bool) -> None:
    version.mkdir(parents=True)
    onnx.save(Encoder().onnx(scores=scores), str(version / "model.onnx"))
    pair_tokenizer().save(str(version / "tokenizer.json"))
    (version / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]"}))
    (version / "config.json").write_text(json.dumps({"max_position_embeddings": LENGTH}))
