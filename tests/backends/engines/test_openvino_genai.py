"""OpenVINO GenAI with the tiny Llama: its tokens are torch's, and its traps are met."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from protocol.errors import InvalidArgument, ServerError
from tests.backends.engines.models import GREEDY, TINY, needs_openvino_genai, write_adapter, write_model
from tests.backends.engines.serving import Served, gather, kill_workers, serve
from tests.backends.python.processes import children, until

pytestmark = [pytest.mark.slow, needs_openvino_genai]

# In float32, as torch computes what is recorded.
EXACT: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "num_kv_blocks": 64, "INFERENCE_NUM_THREADS": 1}
GREEDILY: dict[str, Any] = {"temperature": 0, "max_tokens": 32}
PROMPT = GREEDY[0]["prompt"]


async def test_logprobs_of_the_chosen_tokens(tmp_path: Path) -> None:
    async with serve(write_model(tmp_path / "m", "openvino_genai", **EXACT)) as served:
        parts = await served.responses(
            PROMPT, stream=True, logprobs=1, return_logprobs=True, return_cumulative_logprob=True, **GREEDILY
        )
        entries = [entry for part in parts for entry in json.loads(part["logprobs"])]
        assert [int(token) for entry in entries for token in entry] == GREEDY[0]["token_ids"]
        found = [next(iter(entry.values()))["logprob"] for entry in entries]
        assert found == pytest.approx(GREEDY[0]["logprobs"], abs=0.02)
        assert parts[-1]["cumulative_logprob"] == pytest.approx(sum(GREEDY[0]["logprobs"]), abs=0.2)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"structured_outputs": {"regex": "[a"}}, "structured_outputs.regex: Regex parsing error"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json: "),
        ({"structured_outputs": {"json": {"$ref": "#/nowhere"}}}, "structured_outputs.json: "),
        ({"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs.grammar: EBNF parser error"),
        (
            {"structured_outputs": {"structural_tag": "{}"}},
            "structural_tag is not supported by engine 'openvino_genai'",
        ),
        ({"logit_bias": {"1": 5}}, "logit_bias is not supported by engine 'openvino_genai'"),
        ({"bad_words": ["a"]}, "bad_words is not supported"),
        ({"logprobs": 2}, "logprobs: engine 'openvino_genai' reports 1 of the likeliest tokens at most"),
        ({"lora_name": "none"}, "LoRA none is not supported, we currently support []"),
    ],
)
async def test_what_would_break_the_engine_is_refused_before(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    async with serve(write_model(tmp_path / "m", "openvino_genai", **EXACT)) as served:
        async with trio.open_nursery() as nursery:
            beside: list[str] = []

            async def other() -> None:
                beside.append(await served.text(PROMPT, **GREEDILY))

            nursery.start_soon(other)
            with pytest.raises(InvalidArgument) as caught:
                await served.text(PROMPT, **{**GREEDILY, **fields})
        assert text in caught.value.message
        assert beside == [GREEDY[0]["text"]]


async def test_what_does_not_fit_into_the_cache(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", "openvino_genai", **{**EXACT, "num_kv_blocks": 4})
    async with serve(folder) as served:
        with pytest.raises(ServerError, match=r"a prompt of 3.. tokens does not fit into the cache"):
            await served.text("x " * 150, **GREEDILY)
        grown = await served.responses(PROMPT, temperature=0, return_finish_reason=True, return_num_output_tokens=True)
        assert grown[0]["finish_reason"] == "length"
        assert 0 < grown[0]["num_output_tokens"] < 4 * 32
        assert await served.text(PROMPT, **GREEDILY) == GREEDY[0]["text"]
        await served.wait_free()


async def test_prefixes_are_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    """With room enough; what goes wrong without is in the documentation."""
    async with serve(write_model(tmp_path / "m", "openvino_genai", **EXACT, enable_prefix_caching=True)) as served:
        for _ in range(2):
            assert [await served.text(each["prompt"], **GREEDILY) for each in GREEDY] == [
                each["text"] for each in GREEDY
            ]
        await served.wait_free()


async def test_more_than_the_cache_holds_is_right_all_the_same(tmp_path: Path) -> None:
    """What the library takes out of it goes on where it was."""
    folder = write_model(tmp_path / "m", "openvino_genai", **{**EXACT, "num_kv_blocks": 12})
    async with serve(folder) as served:
        options: dict[str, Any] = {"temperature": 0, "max_tokens": 100, "stream": True}
        expected = [await served.text(each["prompt"], **options) for each in GREEDY]
        for each, text in zip(GREEDY, expected, strict=True):
            assert text.startswith(each["text"][:20])
        found = await gather(*(served.text(each["prompt"], **options) for each in GREEDY * 8))
        assert found == expected * 8
        await served.wait_free()


def merge(version: Path, deltas: Mapping[str, np.ndarray]) -> None:
    """Add to the matrices of the model in a version's folder."""
    import openvino

    path = version / "openvino_model.xml"
    model = openvino.Core().read_model(path)
    left = dict(deltas)
    for node in model.get_ops():
        place = node.get_friendly_name().removeprefix("self.").removesuffix(".weight_compressed")
        if node.get_type_name() == "Constant" and place in left:
            merged = node.data.astype(np.float32) + left.pop(place)
            constant = openvino.op.Constant(merged)
            for target in node.output(0).get_target_inputs():
                target.replace_source_output(constant.output(0))
    assert not left
    openvino.save_model(model, version / "merged.xml", compress_to_fp16=False)
    del model, node  # the files are mapped
    for suffix in (".xml", ".bin"):
        (version / "merged.xml").with_suffix(suffix).rename(path.with_suffix(suffix))


async def test_an_adapter_is_what_its_weights_are_when_they_are_merged(tmp_path: Path) -> None:
    deltas = write_adapter(tmp_path / "adapters" / "a", seed=1)
    prompts = [each["prompt"] for each in GREEDY]
    merged = write_model(tmp_path / "merged" / "m", "openvino_genai", **EXACT)
    merge(merged / "1", deltas)
    async with serve(merged) as served:
        expected = [await served.text(each, **GREEDILY) for each in prompts]
    async with serve(write_model(tmp_path / "m", "openvino_genai", **EXACT), adapter_folders=(tmp_path,)) as served:
        await served.core.load_adapter("m", "a", str(tmp_path / "adapters" / "a"))
        found = await gather(
            *(served.text(each, lora_name="a", **GREEDILY) for each in prompts),
            *(served.text(each, **GREEDILY) for each in prompts),
        )
    assert found == [*expected, *(each["text"] for each in GREEDY)]
    assert set(expected).isdisjoint(each["text"] for each in GREEDY)


async def test_adapters_are_changed_while_it_generates(tmp_path: Path) -> None:
    for seed, name in enumerate("ab"):
        write_adapter(tmp_path / "adapters" / name, seed)
    write_adapter(tmp_path / "adapters" / "other", seed=1, hidden=48)
    shutil.copytree(tmp_path / "adapters" / "a", tmp_path / "adapters" / "junk")
    (tmp_path / "adapters" / "junk" / "adapter_model.safetensors").write_bytes(b"x" * 100)
    folder = write_model(tmp_path / "m", "openvino_genai", **EXACT, max_loras=1)
    async with serve(folder, adapter_folders=(tmp_path,)) as served:
        core = served.core

        async def ask(name: str = "", **more: Any) -> str:
            named = {"lora_name": name} if name else {}
            return await served.text(PROMPT, **{**GREEDILY, **named, **more})

        async def load(name: str, path: str, *, replace: bool = False) -> None:
            await core.load_adapter("m", name, str(tmp_path / "adapters" / path), replace=replace)

        await load("x", "a")
        first = await ask("x")
        beside, _, _ = await gather(ask("x", max_tokens=200), load("y", "b"), load("x", "b", replace=True))
        assert beside.startswith(first), "what has begun ends with the adapter that it began with"
        second = await ask("x")
        assert len({first, second, GREEDY[0]["text"]}) == 3
        assert await gather(ask("x"), ask("y"), ask()) == [second, second, GREEDY[0]["text"]]
        with pytest.raises(InvalidArgument, match="model instance 'm_0': LoRA adapter 'z': it does not fit the model"):
            await load("z", "other")
        with pytest.raises(InvalidArgument, match="Cannot parse safetensor"):
            await load("x", "junk", replace=True)
        assert await ask("x") == second
        kill_workers(children())
        await until(lambda: not core.is_model_ready("m"))
        await served.wait_ready()
        assert await gather(ask("x"), ask("y"), ask()) == [second, second, GREEDY[0]["text"]]
        await core.unload_adapter("m", "x")
        with pytest.raises(InvalidArgument, match=r"LoRA x is not supported, we currently support \['y'\]"):
            await ask("x")
        assert await ask() == GREEDY[0]["text"]
        await served.wait_free()


async def test_adapters_change_the_answer_of_their_requests_alone(tmp_path: Path) -> None:
    names = ("a", "b", "c")
    files = {"multi_lora.json": json.dumps({name: f"adapters/{name}" for name in names})}
    folder = write_model(tmp_path / "m", "openvino_genai", files, **EXACT, max_loras=1)
    for seed, name in enumerate(names):
        write_adapter(folder / "1" / "adapters" / name, seed)
    async with serve(folder) as served:

        async def ask(name: str = "") -> str:
            more = {"lora_name": name} if name else {}
            return await served.text(PROMPT, **GREEDILY, **more)

        alone = [await ask(name) for name in names]
        assert len({*alone, GREEDY[0]["text"]}) == 4
        mixed = await gather(*(ask(name) for name in ("", *names) * 3))
        assert mixed == [GREEDY[0]["text"], *alone] * 3, "one adapter at a time is loaded"
        with pytest.raises(InvalidArgument, match=r"LoRA d is not supported, we currently support \['a', 'b', 'c'\]"):
            await ask("d")
        await served.wait_free()


async def test_it_sleeps_and_wakes(tmp_path: Path) -> None:
    write_adapter(tmp_path / "adapters" / "a", seed=1)
    async with serve(write_model(tmp_path / "m", "openvino_genai", **EXACT), adapter_folders=(tmp_path,)) as served:
        core = served.core
        await core.load_adapter("m", "a", str(tmp_path / "adapters" / "a"))
        adapted = await served.text(PROMPT, lora_name="a", **GREEDILY)
        beside, _ = await gather(served.text(PROMPT, **GREEDILY), core.sleep("m"))
        assert beside == GREEDY[0]["text"]
        assert not children()
        assert not sum(each.byte_size for each in core.model_statistics("m")[0].memory_usage)
        await core.wake("m")
        assert await gather(served.text(PROMPT, **GREEDILY), served.text(PROMPT, lora_name="a", **GREEDILY)) == [
            GREEDY[0]["text"],
            adapted,
        ]
        with pytest.raises(InvalidArgument, match="has no prefixes that it could forget"):
            await core.reset_prefix_cache("m")


async def test_an_adapter_without_weights_fails_alone(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", "openvino_genai", {"multi_lora.json": '{"a": "nowhere"}'}, **EXACT)
    async with serve(folder) as served:
        with pytest.raises(InvalidArgument, match=r"adapter 'a': .*adapter_config.json"):
            await served.text(PROMPT, lora_name="a", **GREEDILY)
        assert await served.text(PROMPT, **GREEDILY) == GREEDY[0]["text"]


async def test_a_folder_of_the_engines_own(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    shutil.copytree(TINY, weights)
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    arguments = {"model": str(weights), "max_model_len": 64, "num_kv_blocks": 64, "INFERENCE_PRECISION_HINT": "f32"}
    (folder / "1" / "model.json").write_text(json.dumps(arguments))
    (folder / "config.pbtxt").write_text('backend: "openvino_genai"')
    async with serve(folder) as served:
        assert await served.text(PROMPT, **GREEDILY) == GREEDY[0]["text"]
        await refuses_length(served)


async def refuses_length(served: Served) -> None:
    with pytest.raises(InvalidArgument, match="the context of 64 tokens"):
        await served.text(PROMPT, temperature=0, max_tokens=64)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"gpu_memory_utilization": "0.9"}, "OpenVINO GenAI has no option 'gpu_memory_utilization'"),
        ({"model": ".."}, ""),
    ],
)
async def test_a_load_that_fails_says_why(tmp_path: Path, parameters: dict[str, str], text: str) -> None:
    with pytest.raises(ServerError) as caught:
        async with serve(write_model(tmp_path / "m", "openvino_genai", **parameters)):
            pass
    assert text in str(caught.value)
    assert "model 'm'" in str(caught.value)
