"""Every engine behind the tensors of TensorRT-LLM's ensemble, and of its LLM-API model: what the inputs say is done."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.backends.engines.conformance.conftest import Served
from tests.backends.engines.conformance.engines import ENGINES, EngineCase
from tests.backends.engines.models import GREEDY
from tests.e2e.engine_calls import events, generate, is_free, url
from tests.e2e.server_process import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

ENSEMBLE, API = "ensemble", "api"
NAMES = {ENSEMBLE: "tensorrt_llm", API: "llm_api"}
PROMPT: str = GREEDY[0]["prompt"]
# The documented call, but for a stop token that comes.
DOCUMENTED = {"text_input": PROMPT, "max_tokens": 32, "bad_words": "", "stop_words": "", "pad_id": 2, "end_id": 2}
ASKED = {"text_input": PROMPT, "sampling_param_max_tokens": 32}
START_SECONDS = 240.0


@pytest.fixture(scope="module", params=ENGINES, ids=lambda engine: engine.name)
def served(
    request: pytest.FixtureRequest, run_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A model of either kind, with an adapter whose name is a number."""
    engine: EngineCase = request.param
    if not engine.is_installed:
        pytest.skip(f"{engine.package} is not installed")
    repository = tmp_path_factory.mktemp(engine.name)
    for model, names in NAMES.items():
        named = replace(engine, parameters={**engine.parameters, "tensor_names": names})
        folder = named.write(repository / model, run_folder)
        (folder / "1" / "multi_lora.json").write_text(json.dumps({"7": "adapters/a"}))
    with (repository / ENSEMBLE / "config.pbtxt").open("a") as config:
        config.write("max_batch_size: 8\n")
    with ServerProcess(repository=repository, start_seconds=START_SECONDS) as server:
        server.addresses  # noqa: B018 (waits until it serves)
        yield Served(engine, server)


def answer(served: Served, model: str, body: dict[str, Any]) -> dict[str, Any]:
    found = generate(served.server, body, model)
    assert found.status_code == 200, found.text
    made: dict[str, Any] = found.json()
    return made


def ask(served: Served, **tensors: Any) -> dict[str, Any]:
    """The ensemble, without the prompt in its answer."""
    return answer(served, ENSEMBLE, {**DOCUMENTED, "exclude_input_in_output": True, **tensors})


def ask_api(served: Served, **tensors: Any) -> dict[str, Any]:
    return answer(served, API, {**ASKED, **tensors})


def stream(served: Served, model: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with httpx.stream("POST", url(served.server, model, "generate_stream"), json=body, timeout=60) as response:
        assert response.status_code == 200
        return list(events(response))


def test_the_documented_calls_are_greedy(served: Served) -> None:
    text = served.engine.text(GREEDY[0])
    found = answer(served, ENSEMBLE, {**DOCUMENTED, "return_num_input_tokens": True, "return_num_output_tokens": True})
    assert found["text_output"] == PROMPT + text
    assert (found["batch_index"], found["sequence_index"]) == (0, 0)
    assert (found["num_input_tokens"], found["num_output_tokens"]) == (len(GREEDY[0]["prompt_token_ids"]), 32)
    assert ask_api(served)["text_output"] == text

    def both(entry: dict[str, Any]) -> list[str]:
        prompt = entry["prompt"]
        return [each(served, text_input=prompt)["text_output"] for each in (ask, ask_api)]

    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(both, GREEDY * 4))
    assert together == [[served.engine.text(each)] * 2 for each in GREEDY] * 4


def test_streams(served: Served) -> None:
    """Of the ensemble each response has what is new, of the LLM-API model all so far."""
    text = served.engine.text(GREEDY[0])
    parts = stream(served, ENSEMBLE, {**DOCUMENTED, "stream": True, "return_num_output_tokens": True})
    assert len(parts) > 1
    assert "".join(each["text_output"] for each in parts) == text
    assert sum(each["num_output_tokens"] for each in parts) == 32
    texts = [each["text_output"] for each in stream(served, API, {**ASKED, "streaming": True})]
    assert len(texts) > 1
    assert all(after.startswith(before) for before, after in pairwise(texts))
    assert texts[-1] == text


def test_log_probabilities(served: Served) -> None:
    if not served.engine.computes:
        pytest.skip("it has none")
    expected = GREEDY[0]["logprobs"]
    found = ask(served, return_log_probs=True)
    assert found["output_log_probs"] == pytest.approx(expected, abs=0.02)
    assert found["cum_log_probs"] == pytest.approx(sum(expected), abs=0.2)
    assert ask_api(served, return_cumulative_logprob=True)["cumulative_logprob"] == pytest.approx(
        sum(expected), abs=0.2
    )


def test_what_ends_it(served: Served) -> None:
    tokens, text = served.engine.expected(GREEDY[0]), served.engine.text(GREEDY[0])
    stop = text[6:10]
    assert ask(served, stop_words=[stop, "nowhere"])["text_output"] == text[: text.index(stop)]
    end = tokens[5]
    at_token = ask(served, end_id=end, return_num_output_tokens=True)
    assert at_token["num_output_tokens"] == tokens.index(end) + 1
    wanted = {"sampling_param_stop": [stop], "return_finish_reason": True, "return_stop_reason": True}
    found = ask_api(served, **wanted)
    assert (found["text_output"], found["finish_reason"]) == (text[: text.index(stop)], "stop")
    assert found["stop_reason"] == stop
    short = ask_api(served, sampling_param_max_tokens=3, return_finish_reason=True)
    assert (short["finish_reason"], text.startswith(short["text_output"])) == ("length", True)


def test_how_tokens_are_chosen(served: Served) -> None:
    if not served.engine.computes:
        pytest.skip("it replays")
    text = served.engine.text(GREEDY[0])
    sampled = {"temperature": 1.0, "top_p": 0.9, "seed": 5}
    ours, theirs = (
        [each["text_output"] for each in found]
        for found in (
            [ask(served, **sampled) for _ in range(2)],
            [ask_api(served, **{f"sampling_param_{key}": value for key, value in sampled.items()}) for _ in range(2)],
        )
    )
    assert ours == theirs
    assert len({text, *ours}) == 2
    assert ask(served, temperature=1.0, top_k=1)["text_output"] == text
    for penalty in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        assert ask(served, **{penalty: 1.9}, max_tokens=64)["text_output"] != ask(served, max_tokens=64)["text_output"]


def test_bad_words(served: Served) -> None:
    text = served.engine.text(GREEDY[0])
    refused = generate(served.server, {**DOCUMENTED, "bad_words": text[:2]}, ENSEMBLE)
    if served.engine.name != "vllm":
        assert (refused.status_code, "bad_words" in refused.json()["error"]) == (400, True)
    else:
        assert not ask(served, bad_words=[text[:2]])["text_output"].startswith(text[:2])


def test_guides(served: Served) -> None:
    guide = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "[a-c]{3}d"}
    if not served.engine.structures:
        refused = generate(served.server, {**DOCUMENTED, **guide}, ENSEMBLE)
        assert (refused.status_code, "is not supported by engine" in refused.json()["error"]) == (400, True)
        return
    assert re.fullmatch("[a-c]{3}d", ask(served, **guide)["text_output"])
    schema = {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": '{"type": "boolean"}'}
    assert ask(served, **schema)["text_output"] in ("true", "false")


def test_an_adapter_by_its_number_and_by_its_name(served: Served) -> None:
    by_number = ask(served, lora_task_id=7)["text_output"]
    assert by_number == ask_api(served, lora_name="7")["text_output"] != served.engine.text(GREEDY[0])
    refused = generate(served.server, {**DOCUMENTED, "lora_task_id": 8}, ENSEMBLE)
    assert (refused.status_code, "LoRA 8 is not supported" in refused.json()["error"]) == (400, True)


def test_a_second_request_stops_the_first(served: Served) -> None:
    body = {**ASKED, "sampling_param_max_tokens": 8000, "streaming": True}
    headers = {"triton-request-id": "mine"}
    with httpx.stream(
        "POST", url(served.server, API, "generate_stream"), json=body, headers=headers, timeout=60
    ) as response:
        found = events(response)
        next(found)
        stop = {"text_input": "", "stop": True}
        ended = httpx.post(url(served.server, API, "generate"), json=stop, headers=headers, timeout=60)
        assert ended.status_code == 200, ended.text
        *_, last = found
    assert "Request cancelled by client" in last["error"]
    assert is_free(served.server, API)
