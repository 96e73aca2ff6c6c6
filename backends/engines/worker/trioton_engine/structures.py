"""Structured output of OpenVINO GenAI: its configuration, and the compilation of what clients send for it.

The library compiles a schema, expression or grammar in the middle of a step, and an exception there breaks the pipeline
with all that runs in it. So a structure is compiled before by a pipeline of its own, whose model is blank; that one may
break, and takes milliseconds to be made again. What is compiled is kept with the tokenizer, for all pipelines that
share it.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino.opset13 as ops
import openvino_genai as genai

from .engine import Refused, Structure

_HEAD = 32
_PLACE = re.compile(r"\S+\.(?:cc|cpp|hpp):\d+:")
_LONGEST_REASON = 300
_PIECES = re.compile(r"[ -~]+|[^ -~]")
_MODEL = "openvino_model.xml"
_ANY_OBJECT = '{"type": "object"}'
_PROMPT = openvino.Tensor(np.zeros((1, 1), np.int64))


def structured(structure: Structure) -> Any:
    """The structure in the library's form."""
    config = genai.StructuredOutputConfig()
    value = structure.value
    if structure.kind == "json":
        config.json_schema = value
    elif structure.kind == "json_object":
        config.json_schema = _ANY_OBJECT
    elif structure.kind == "regex":
        config.regex = value
    elif structure.kind == "grammar":
        config.grammar = value
    else:
        config.grammar = "root ::= " + " | ".join(map(_quoted, json.loads(value)))
    return config


def _quoted(text: str) -> str:
    """A text in the grammar's quotes. The library loses itself where a letter that it writes as an escape is
    followed by one that could belong to that, so they are not in the same quotes."""
    return " ".join(json.dumps(piece, ensure_ascii=False) for piece in _PIECES.findall(text))


def reason_of(error: BaseException) -> str:
    """The library's text, without where in its sources it was written."""
    text = " ".join(_PLACE.split(str(error))[-1].split())
    return f"{text[:_LONGEST_REASON]}..." if len(text) > _LONGEST_REASON else text


class StructureCompiler:
    """A blank pipeline that compiles structures for the model in `folder`, and for all pipelines with the `tokenizer`.

    Both methods raise Refused for a structure that cannot be compiled, after any time, and with any use of memory.
    """

    def __init__(self, folder: str, tokenizer: Any = None) -> None:
        self._folder = folder
        self._tokenizer = genai.Tokenizer(folder) if tokenizer is None else tokenizer
        self._pipeline: Any = None
        self._last = 0

    def prepare(self) -> None:
        """Have all that compiling takes."""
        if self._pipeline is None:
            self._pipeline = self._make()

    def compile(self, structure: Structure) -> None:
        """Holds the interpreter's lock."""
        self.prepare()
        self._last += 1
        try:
            handle = self._pipeline.add_request(self._last, _PROMPT, _one_token(structure))  # dropped, it is cancelled
            self._pipeline.step()
            if not handle.can_read():
                raise RuntimeError("it allows no output")
        except Exception as error:
            raise self._broken(structure, error) from None

    def compile_unlocked(self, structure: Structure) -> None:
        """The same without the interpreter's lock, for a thread; one that allows no output is taken."""
        self.prepare()
        try:
            self._pipeline.generate([_PROMPT], [_one_token(structure)])
        except Exception as error:
            raise self._broken(structure, error) from None

    def _broken(self, structure: Structure, error: Exception) -> Refused:
        self._pipeline = None
        reason = "it takes too much memory" if isinstance(error, MemoryError) else reason_of(error)
        return Refused(f"structured_outputs.{structure.kind}: {reason}")

    def _make(self) -> Any:
        model = openvino.Core().read_model(Path(self._folder, _MODEL))
        vocabulary = model.output("logits").partial_shape[2].get_length()
        scheduler = genai.SchedulerConfig()
        scheduler.num_kv_blocks = 2
        with tempfile.TemporaryDirectory(prefix="trioton-blank-") as blank:
            openvino.save_model(blank_model(vocabulary), str(Path(blank, _MODEL)))
            return genai.ContinuousBatchingPipeline(blank, self._tokenizer, scheduler, "CPU")


def _one_token(structure: Structure) -> Any:
    config = genai.GenerationConfig()
    config.max_new_tokens = 1
    config.structured_output_config = structured(structure)
    return config


def blank_model(vocabulary: int) -> Any:
    """A language model of one attention without weights, to which all tokens are alike."""
    partial, integer = openvino.PartialShape, openvino.Type.i64
    token_ids = ops.parameter(partial([-1, -1]), integer, name="input_ids")
    mask = ops.parameter(partial([-1, -1]), integer, name="attention_mask")
    positions = ops.parameter(partial([-1, -1]), integer, name="position_ids")
    beams = ops.parameter(partial([-1]), openvino.Type.i32, name="beam_idx")
    parameters = [token_ids, mask, positions, beams]
    for each in parameters:
        each.output(0).set_names({each.get_friendly_name()})
    summed = ops.add(ops.convert(token_ids, "f32"), ops.convert(positions, "f32"))
    hidden = ops.multiply(ops.unsqueeze(summed, _numbers(2)), ops.constant(np.full((1, 1, _HEAD), 1e-6, np.float32)))

    def heads() -> Any:
        return ops.transpose(ops.reshape(hidden, _numbers(0, 0, 1, _HEAD), True), _numbers(0, 2, 1, 3))

    batch = ops.gather(ops.shape_of(token_ids, "i64"), _numbers(0), ops.constant(0, dtype=np.int64))
    empty = ops.broadcast(_float(0.0), ops.concat([batch, _numbers(1, 0, _HEAD)], 0))
    sinks, cached = [], []
    for name in ("key", "value"):
        variable = f"past_key_values.0.{name}present.0.{name}"
        past = ops.read_value(empty, variable, openvino.Type.f32, partial([-1, 1, -1, _HEAD]))
        ordered = ops.gather(past, beams, ops.constant(0, dtype=np.int64))
        both = ops.concat([ordered, heads()], 2)
        cached.append(both)
        sinks.append(ops.assign(both, variable))
    hiding = ops.multiply(ops.subtract(ops.convert(mask, "f32"), _float(1.0)), _float(1e4))
    attended = ops.scaled_dot_product_attention(heads(), *cached, ops.unsqueeze(hiding, _numbers(1, 2)))
    merged = ops.reshape(ops.transpose(attended, _numbers(0, 2, 1, 3)), _numbers(0, 0, _HEAD), True)
    logits = ops.add(ops.reduce_sum(merged, _numbers(2), True), ops.constant(np.zeros((1, 1, vocabulary), np.float32)))
    logits.output(0).set_names({"logits"})
    return openvino.Model([ops.result(logits)], sinks, parameters, "blank")


def _numbers(*values: int) -> Any:
    return ops.constant(list(values), dtype=np.int64)


def _float(value: float) -> Any:
    return ops.constant(value, dtype=np.float32)
