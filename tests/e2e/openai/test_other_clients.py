"""Clients and load generators of others, unchanged, against an engine: LangChain, LiteLLM, AIPerf, guidellm, vLLM's.

`make clients` installs them into environments of their own in `.clients/`, but not vLLM, which is large and comes
there by hand; those that are not there are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.engines.models import GREEDY, TINY, needs_openvino_genai, write_model
from tests.e2e.openai.encoder import add_cross_encoder
from tests.e2e.server_process import ServerProcess

CLIENTS = Path(__file__).parents[3] / ".clients"
TIMEOUT_SECONDS = 120.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), needs_openvino_genai]

PROMPT = "The scheduler"

LANGCHAIN = """
import json, sys
from langchain_openai import ChatOpenAI, OpenAI

url, prompt = sys.argv[1:]
options = {"model": "tiny", "base_url": f"{url}/v1", "api_key": "none", "temperature": 0, "max_tokens": 32}
chat = ChatOpenAI(**options, stream_usage=True)
whole = chat.invoke(prompt)
chunks = list(chat.stream(prompt))
texts = OpenAI(**options)
print(json.dumps({
    "chat": whole.content,
    "usage": whole.usage_metadata["output_tokens"],
    "finish": whole.response_metadata["finish_reason"],
    "stream": "".join(chunk.content for chunk in chunks),
    "stream_usage": [chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata],
    "text": texts.invoke(prompt),
    "text_stream": "".join(texts.stream(prompt)),
    "batch": [answer.content for answer in chat.batch([prompt, prompt])],
}))
"""

LITELLM = """
import json, sys
import litellm

url, prompt = sys.argv[1:]
messages = [{"role": "user", "content": prompt}]
options = {"messages": messages, "temperature": 0, "max_tokens": 32, "api_base": f"{url}/v1", "api_key": "none"}
whole = litellm.completion(model="hosted_vllm/tiny", **options)
chunks = list(litellm.completion(model="hosted_vllm/tiny", stream=True, **options))
ranked = litellm.rerank(
    model="hosted_vllm/cross_encoder", query="a b", documents=["a", "b c", "d"], top_n=2, api_base=url, api_key="none"
)
text = litellm.text_completion(
    model="text-completion-openai/tiny", prompt=prompt, temperature=0, max_tokens=32, api_base=f"{url}/v1",
    api_key="none",
)
print(json.dumps({
    "chat": whole.choices[0].message.content,
    "usage": whole.usage.completion_tokens,
    "finish": whole.choices[0].finish_reason,
    "openai": litellm.completion(model="openai/tiny", **options).choices[0].message.content,
    "stream": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
    "ranked": [each["index"] for each in ranked.results],
    "text": text.choices[0].text,
}))
"""

# What `vllm bench serve` runs: the command itself needs a package of the name `vllm`, which builds for CPUs have not.
VLLM = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main

parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    repository = tmp_path_factory.mktemp("clients")
    write_model(repository / "tiny", "openvino_genai", INFERENCE_PRECISION_HINT="f32", KV_CACHE_PRECISION="f32")
    add_cross_encoder(repository)
    with ServerProcess(repository=repository) as server:
        yield f"http://{server.addresses['http']}"


def program(client: str, name: str = "python") -> str:
    path = CLIENTS / client / "bin" / name
    if not path.is_file():
        pytest.skip(f"{client} is not there; `make clients` installs it")
    return str(path)


def run(folder: Path, *command: object, **environment: str) -> str:
    """What it prints. The model's name is unknown to the hub of models: nobody is to ask there."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": "", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def answers(folder: Path, client: str, source: str, url: str, **environment: str) -> dict[str, Any]:
    """The last line that a program of a client prints, as JSON."""
    printed = run(folder, program(client), "-c", source, url, PROMPT, **environment)
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def greedy(prompt: str) -> str:
    return next(str(each["text"]) for each in GREEDY if each["prompt"] == prompt)


def test_langchain(tmp_path: Path, url: str) -> None:
    made = answers(tmp_path, "langchain", LANGCHAIN, url, LANGSMITH_TRACING="false")
    assert made["text"] == made["text_stream"] == greedy(PROMPT)
    assert made["chat"] == made["stream"]
    assert made["batch"] == [made["chat"]] * 2
    assert (made["usage"], made["stream_usage"], made["finish"]) == (32, [32], "length")


def test_litellm(tmp_path: Path, url: str) -> None:
    made = answers(tmp_path, "litellm", LITELLM, url, LITELLM_LOCAL_MODEL_COST_MAP="True")
    assert made["text"] == greedy(PROMPT)
    assert made["chat"] == made["stream"] == made["openai"]
    assert (made["usage"], made["finish"], len(made["ranked"])) == (32, "length", 2)


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_aiperf(tmp_path: Path, url: str, kind: str) -> None:
    run(
        tmp_path,
        *(program("aiperf", "aiperf"), "profile", "--model", "tiny", "--url", url, "--endpoint-type", kind),
        *("--streaming", "--tokenizer", TINY, "--synthetic-input-tokens-mean", "64", "--output-tokens-mean", "32"),
        *("--concurrency", "4", "--request-count", "24", "--extra-inputs", "ignore_eos:true", "--ui-type", "none"),
        *("--use-server-token-count", "--output-artifact-dir", tmp_path),
    )
    (report,) = tmp_path.rglob("profile_export_aiperf.json")
    made = json.loads(report.read_text())
    assert made["request_count"]["avg"] == 24
    assert made["output_sequence_length"]["avg"] == 32
    assert "error_request_count" not in made or not made["error_request_count"]["avg"]


def test_guidellm(tmp_path: Path, url: str) -> None:
    run(
        tmp_path,
        *(program("guidellm", "guidellm"), "run", "--backend", f"kind=openai_http,target={url},model=tiny"),
        *("--tokenizer", f"kind=huggingface_auto,model={TINY}"),
        *("--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=32"),
        *("--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=16"),
    )
    (benchmark,) = json.loads((tmp_path / "benchmarks.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (16, 0)


RANDOM = ("random", "--random-input-len=32", "--random-output-len=16", "--ignore-eos")
RERANK = ("random-rerank", "--random-input-len=40", "--random-batch-size=4")


@pytest.mark.parametrize(
    ("backend", "endpoint", "model", "data", "completed", "tokens"),
    [
        ("openai", "/v1/completions", "tiny", RANDOM, 16, 256),
        ("openai-chat", "/v1/chat/completions", "tiny", RANDOM, 16, 256),
        ("vllm-rerank", "/v1/rerank", "cross_encoder", RERANK, 4, 0),
    ],
)
def test_vllm_bench(
    tmp_path: Path,
    url: str,
    backend: str,
    endpoint: str,
    model: str,
    data: tuple[str, ...],
    completed: int,
    tokens: int,
) -> None:
    """Of reranking, four documents are one request."""
    run(
        tmp_path,
        *(program("vllm"), "-c", VLLM, "--backend", backend, "--endpoint", endpoint, "--base-url", url),
        *("--model", model, "--tokenizer", TINY, "--dataset-name", *data, "--num-prompts", "16"),
        *("--max-concurrency", "4", "--save-result", "--result-filename", "made.json"),
        VLLM_NO_USAGE_STATS="1",
    )
    made = json.loads((tmp_path / "made.json").read_text())
    assert made["completed"] == completed
    assert made.get("total_output_tokens", 0) == tokens
    assert made.get("failed", 0) == 0
