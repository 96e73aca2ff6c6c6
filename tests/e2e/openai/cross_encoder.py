"""A small cross-encoder with random weights, in the form of BERT: as a model of ONNX, and as numpy computes it."""

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

WIDTH, LENGTH = 16, 64
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz"]
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
MASKED = -1e9


@dataclass
class CrossEncoder:
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

    def logit(self, ids: list[int], kinds: list[int]) -> float:
        """Of one pair, without anything that fills up."""
        w = self.weights
        hidden = w["words"][ids] + w["places"][: len(ids)] + w["kinds"][kinds]
        scores = (hidden @ w["query"]) @ (hidden @ w["key"]).T
        chances = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (chances / chances.sum(axis=-1, keepdims=True)) @ (hidden @ w["value"])
        return float((np.tanh(mixed[0] @ w["pooler"]) @ w["head"])[0])

    def onnx(self) -> Any:
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
            node("MatMul", ["chances", "values"], "mixed"),
            node("Gather", ["mixed", "first"], "start", axis=1),
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
        graph = helper.make_graph(
            nodes,
            "cross_encoder",
            [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in INPUTS],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1])],
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
    version = folder / "cross_encoder" / "1"
    version.mkdir(parents=True)
    onnx.save(CrossEncoder().onnx(), str(version / "model.onnx"))
    pair_tokenizer().save(str(version / "tokenizer.json"))
    (version / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]"}))
    (version / "config.json").write_text(json.dumps({"max_position_embeddings": LENGTH}))
    (folder / "cross_encoder" / "config.pbtxt").write_text(
        'name: "cross_encoder"\nbackend: "onnxruntime"\nmax_batch_size: 4\n'
        'parameters: { key: "openai_score_output", value: { string_value: "logits" } }\n'
    )
