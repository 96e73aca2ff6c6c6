"""vLLM with the tiny Llama: what only it has, and what becomes of it when a part of it ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.backends.engines.conformance.engines import ADAPTERS, ENGINES, EngineCase, weights
from tests.backends.engines.conformance.test_conformance import parent_of
from tests.backends.engines.models import GREEDY, tiny_tokenizer, write_adapter
from tests.e2e.engine_calls import events, generate, load, url
from tests.e2e.server_process import ServerProcess, eventually, is_running

_CASE: EngineCase = next(each for each in ENGINES if each.name == "vllm")
# It runs few at once, so that more of them wait.
VLLM = replace(_CASE, parameters={**_CASE.parameters, "max_num_seqs": 2})
pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.skipif(not VLLM.is_installed, reason="vllm is not installed"),
]

# vLLM takes it, and its compiler does not.
UNREADABLE = {"json": {"type": "object", "patternProperties": {"[": {}}}}
PROMPT: str = GREEDY[0]["prompt"]
RESTART_SECONDS = 240.0
# No processor runs the Python of one of vLLM's steps in less.
LEAST_STEP_SECONDS = 0.0001


@pytest.fixture(scope="module")
def server(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("vllm")
    version = VLLM.write(repository / "tiny", run_folder) / "1"
    tokenizer = repository / "tiny" / "tokenizer"
    tokenizer.mkdir()
    for file in version.glob("tokenizer*"):
        file.rename(tokenizer / file.name)
    (version / "multi_lora.json").write_text(json.dumps({"a": "adapters/a", "b": "adapters/b", "broken": "nowhere"}))
    arguments = {
        "tokenizer": "../tokenizer",
        "enable_lora": True,
        "max_logprobs": 4,
        "generation_config": "vllm",
        "enable_sleep_mode": True,
        "scheduling_policy": "priority",
    }
    (version / "model.json").write_text(json.dumps(arguments))
    flags = ("--restart-wait-secs=240", "--openai-sleep-mode=true")
    with ServerProcess(*flags, repository=repository, start_seconds=RESTART_SECONDS) as started:
        started.addresses  # noqa: B018 (waits until it serves)
        yield started


def ask(server: ServerProcess, seconds: float = 60, /, prompt: str = PROMPT, **fields: Any) -> dict[str, Any]:
    parameters = {"temperature": 0, "max_tokens": 32, **fields}
    body = {"text_input": prompt, "exclude_input_in_output": True, "return_logprobs": True, "parameters": parameters}
    answer = httpx.post(url(server, "tiny", "generate"), json=body, timeout=seconds)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_the_likeliest_tokens_at_each_place(server: ServerProcess) -> None:
    entries = json.loads(ask(server, logprobs=3)["logprobs"])
    for entry, token, logprob in zip(entries, GREEDY[0]["token_ids"], GREEDY[0]["logprobs"], strict=True):
        assert entry[str(token)]["logprob"] == pytest.approx(logprob, abs=0.02)
        assert sorted(each["rank"] for each in entry.values()) == [1, 2, 3]
    chosen = json.loads(ask(server, logprobs=0)["logprobs"])
    assert [list(entry) for entry in chosen] == [[str(token)] for token in GREEDY[0]["token_ids"]]


def test_what_a_structure_excludes_has_a_logprob_too(server: ServerProcess) -> None:
    found = ask(server, logprobs=3, structured_outputs=json.dumps({"choice": ["yes"]}))
    assert found["text_output"] == "yes"
    values = [each["logprob"] for entry in json.loads(found["logprobs"]) for each in entry.values()]
    assert min(values) == -9999


def test_bias_and_bad_words_change_the_tokens(server: ServerProcess) -> None:
    [first, *_] = GREEDY[0]["token_ids"]
    biased = json.loads(ask(server, logprobs=0, logit_bias=json.dumps({"7": 100}), max_tokens=3)["logprobs"])
    assert [list(entry) for entry in biased] == [["7"]] * 3
    without = ask(server, logprobs=0, bad_words=json.dumps([GREEDY[0]["text"][:2]]))
    assert str(first) not in json.loads(without["logprobs"])[0]


def merged_texts(weights: Path, deltas: Mapping[str, np.ndarray]) -> list[str]:
    """What torch makes of the recorded prompts in float32, when an adapter's matrices are added to the model's."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32).eval()
    tokenizer, found = tiny_tokenizer(), []
    with torch.no_grad():
        for place, delta in deltas.items():
            model.get_submodule(place).weight += torch.from_numpy(delta)
        for each in GREEDY:
            prompt = each["prompt_token_ids"]
            made = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=32, min_new_tokens=32)
            found.append(tokenizer.decode(made[0, len(prompt) :].tolist()))
    return found


def test_an_adapter_is_what_its_weights_are_when_they_are_merged(
    server: ServerProcess, run_folder: Path, tmp_path: Path
) -> None:
    expected = {"": [each["text"] for each in GREEDY]}
    for seed, name in enumerate(ADAPTERS):
        expected[name] = merged_texts(weights(run_folder), write_adapter(tmp_path / name, seed))
    assert len({text for texts in expected.values() for text in texts}) == 3 * len(GREEDY)

    def found(name: str) -> list[str]:
        chosen = {"lora_name": name} if name else {}
        return [ask(server, prompt=each["prompt"], ignore_eos=True, **chosen)["text_output"] for each in GREEDY]

    assert {name: found(name) for name in expected} == expected
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(found, [*expected] * 2)) == [*expected.values()] * 2, "in one batch"


def test_prefixes_are_forgotten(server: ServerProcess) -> None:
    reset = httpx.post(f"http://{server.addresses['http']}/reset_prefix_cache", timeout=60)
    assert reset.status_code == 200, reset.text
    assert ask(server)["text_output"] == GREEDY[0]["text"]


def test_priorities_reach_the_engine(server: ServerProcess) -> None:
    assert ask(server, priority=-5)["text_output"] == GREEDY[0]["text"]


def test_the_time_in_vllms_queue_is_no_time_of_computing(server: ServerProcess) -> None:
    """Two wait there for the whole generations of the other two; of its own queue the server has none."""
    before = load(server, "tiny")
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: ask(server, max_tokens=300, ignore_eos=True), range(4)))
    after = load(server, "tiny")
    queued, prefill, decode, all_of_it = (
        after[f"{name}_seconds_sum"] - before[f"{name}_seconds_sum"]
        for name in ("request_queue_time", "request_prefill_time", "request_decode_time", "e2e_request_latency")
    )
    assert queued > 600 * LEAST_STEP_SECONDS
    assert queued + prefill + decode <= all_of_it + 0.001, "no moment counts twice"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"logprobs": 5}, "logprobs: engine 'vllm' reports 4 of the likeliest tokens at most"),
        ({"lora_name": "broken"}, "adapter 'broken': "),
        ({"logit_bias": json.dumps({"100000": 1})}, "logit_bias"),
        ({"structured_outputs": json.dumps(UNREADABLE)}, "cannot be compiled"),
    ],
    ids=["logprobs", "adapter", "bias", "structure"],
)
def test_a_clients_mistake_is_told_and_costs_nobody_else(
    server: ServerProcess, fields: dict[str, Any], text: str
) -> None:
    refused = generate(server, {"text_input": PROMPT, "parameters": {"max_tokens": 4, **fields}}, "tiny")
    assert refused.status_code == 400, refused.text
    assert text in refused.json()["error"]
    assert ask(server)["text_output"] == GREEDY[0]["text"]


def test_a_model_that_does_not_see_says_so(server: ServerProcess) -> None:
    refused = generate(server, {"text_input": PROMPT, "image": ["aGVsbG8="]}, "tiny")
    assert (refused.status_code, refused.json()["error"]) == (
        400,
        "model 'tiny': image: engine 'vllm' sees no pictures",
    )


def test_the_end_of_vllms_engine_process_is_the_end_of_the_worker(server: ServerProcess) -> None:
    before = server.workers()
    body = {"text_input": PROMPT, "stream": True, "parameters": {"max_tokens": 8000, "ignore_eos": True}}
    with httpx.stream("POST", url(server, "tiny", "generate_stream"), json=body, timeout=60) as response:
        stream = events(response)
        next(stream)
        os.kill(engine_of(before), signal.SIGKILL)
        *_, last = stream
    assert "model instance 'tiny_0' died: its worker process exited with code 1" in last["error"]
    assert ask(server, RESTART_SECONDS)["text_output"] == GREEDY[0]["text"]
    assert eventually(lambda: not any(map(is_running, before)))


def test_it_also_ends_while_nothing_runs(server: ServerProcess) -> None:
    before = server.workers()
    os.kill(engine_of(before), signal.SIGKILL)
    assert eventually(lambda: not any(map(is_running, before)))
    assert ask(server, RESTART_SECONDS)["text_output"] == GREEDY[0]["text"]


@pytest.mark.parametrize("killed", ["worker", "server"])
def test_what_vllm_has_started_ends_with_who_is_killed_meanwhile(tmp_path: Path, run_folder: Path, killed: str) -> None:
    """While vLLM starts: its engine's process is there, and has not begun to say so."""
    VLLM.write(tmp_path / "models" / "tiny", run_folder)
    with ServerProcess(repository=tmp_path / "models") as server:
        processes: set[int] = set()

        def has_begun() -> bool:
            processes.update(server.workers())
            return len(processes) > 2  # the worker, a helper of `multiprocessing`'s, and the engine

        assert eventually(has_begun)
        [worker] = [pid for pid in processes if parent_of(pid) == server.pid]
        os.kill(worker if killed == "worker" else server.pid, signal.SIGKILL)
        assert eventually(lambda: not any(map(is_running, processes)))


def test_it_sleeps_without_its_process_where_vllm_cannot(server: ServerProcess) -> None:
    """On a CPU, that is."""
    before = server.workers()
    text = ask(server, lora_name="a")["text_output"]
    with httpx.Client(base_url=f"http://{server.addresses['http']}", timeout=RESTART_SECONDS) as http:
        assert http.post("/sleep?level=1").status_code == 200
        assert eventually(lambda: not any(map(is_running, before)))
        assert http.get("/is_sleeping").json() == {"is_sleeping": True}
        assert generate(server, {"text_input": PROMPT}, "tiny").status_code == 503
        assert http.post("/wake_up").status_code == 200
    assert ask(server)["text_output"] == GREEDY[0]["text"]
    assert ask(server, lora_name="a")["text_output"] == text != GREEDY[0]["text"]


def engine_of(processes: set[int]) -> int:
    """vLLM's engine process, by the name that it gives itself."""
    [found] = [pid for pid in processes if Path(f"/proc/{pid}/comm").read_text().startswith("VLLM::EngineCor")]
    return found


def test_the_first_prompt_may_be_a_short_one_in_bfloat16(tmp_path: Path, run_folder: Path) -> None:
    """On a processor with AMX that was the end of vLLM's process, most of the time."""
    short = replace(VLLM, parameters={**VLLM.parameters, "dtype": "bfloat16"})
    short.write(tmp_path / "models" / "tiny", run_folder)
    with ServerProcess(repository=tmp_path / "models", start_seconds=RESTART_SECONDS) as server:
        body: dict[str, Any] = {"text_input": "", "prompt_token_ids": [5, 6, 7], "return_num_output_tokens": True}
        body["parameters"] = {"max_tokens": 5, "ignore_eos": True}
        first = httpx.post(url(server, "tiny", "generate"), json=body, timeout=RESTART_SECONDS)
        assert first.status_code == 200, first.text
        assert first.json()["num_output_tokens"] == 5


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"foo": "1"}, "vLLM has no option 'foo'"),
        ({"max_num_seqs": "many"}, "max-num-seqs"),
        ({"speculative_config": "{"}, "speculative-config"),
    ],
)
def test_an_option_that_vllm_does_not_have_fails_the_load(
    tmp_path: Path, run_folder: Path, parameters: dict[str, str], text: str
) -> None:
    wrong = EngineCase("vllm", "vllm", {**VLLM.parameters, **parameters})
    wrong.write(tmp_path / "models" / "tiny", run_folder)
    with ServerProcess(repository=tmp_path / "models") as server:
        assert server.wait() == 1
        assert "model 'tiny'" in server.log
        assert text in server.log
