"""Folders of language models, served as they are, by a server in a process of its own and OpenAI's own client.

`TRIOTON_TEST_CONVERTER` names an interpreter with optimum-intel, torch and transformers: with it a model is really
converted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

from tests.backends.engines.conversion.scripts import WRITES, converter_script, hugging_face_folder
from tests.backends.engines.models import GREEDY, TEXT_FILES, TINY, needs_openvino_genai
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.slow

CONVERTER = os.environ.get("TRIOTON_TEST_CONVERTER", "")
FLOAT32 = "parameters { key: 'INFERENCE_PRECISION_HINT' value { string_value: 'f32' } }"


@contextmanager
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    url = f"http://{server.addresses['http']}/v1"
    with openai.OpenAI(base_url=url, api_key="none", timeout=60, max_retries=0) as made:
        yield made


def generated(api: openai.OpenAI, model: str, prompt: str, max_tokens: int = 32) -> str:
    with api.completions.create(
        model=model, prompt=prompt, temperature=0, max_tokens=max_tokens, stream=True
    ) as chunks:
        return "".join(chunk.choices[0].text for chunk in chunks)


def models(api: openai.OpenAI) -> list[str]:
    return sorted(model.id for model in api.models.list())


def converting(converter: str | Path, cache: Path) -> list[str]:
    settings = {"converter": converter, "conversion-cache-directory": cache}
    return [f"--backend-config=openvino_genai,{key}={value}" for key, value in settings.items()]


@needs_openvino_genai
def test_a_folder_is_served_as_it_is(tmp_path: Path) -> None:
    """Nobody may write to it; what it generates does not depend on the precision for so few tokens."""
    folder = tmp_path / "Tiny Llama"
    shutil.copytree(TINY, folder)
    before = sorted(os.listdir(folder))
    folder.chmod(0o500)
    with ServerProcess(folder=folder) as server, client(server) as api:
        assert models(api) == ["Tiny-Llama"]
        assert generated(api, "Tiny-Llama", GREEDY[0]["prompt"], 4)
        chat = api.chat.completions.create(
            model="Tiny-Llama", messages=[{"role": "user", "content": "x"}], max_tokens=4, temperature=0
        )
        assert chat.usage is not None
        assert chat.usage.completion_tokens == 4
    assert sorted(os.listdir(folder)) == before


def test_a_name_and_an_engine_may_be_given(tmp_path: Path) -> None:
    """The scripted engine needs a tokenizer only, and repeats its prompt."""
    folder = hugging_face_folder(tmp_path / "tiny")
    flags = ["--served-model-name=echo", "--engine=scripted"]
    with ServerProcess(*flags, folder=folder) as server, client(server) as api:
        assert models(api) == ["echo"]
        assert generated(api, "echo", "The scheduler") == "The scheduler"


def test_bare_folders_in_a_repository_beside_added_ones(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    folder = hugging_face_folder(tmp_path / "tiny")
    shutil.copytree(folder, repository / "bare")
    for name, flag in (("copied", "--copy"), ("linked", "--link")):
        command = ["repo", "add", str(folder), f"--repository={repository}", f"--name={name}", flag]
        subprocess.run([sys.executable, "-m", "trioton", *command, "--engine=scripted"], check=True)
    with ServerProcess("--engine=scripted", repository=repository) as server, client(server) as api:
        assert models(api) == ["bare", "copied", "linked"]
        for name in models(api):
            assert generated(api, name, "The scheduler") == "The scheduler"


@needs_openvino_genai
def test_what_is_converted_once_serves_at_once(tmp_path: Path) -> None:
    """The stand-in for the converter writes the fixture; its second server has none, and the cache."""
    folder = hugging_face_folder(tmp_path / "tiny")
    converter = converter_script(tmp_path / "bin", WRITES)
    (folder / "config.pbtxt").write_text(FLOAT32)
    for interpreter in (converter, sys.executable):
        flags = converting(interpreter, tmp_path / "cache")
        with ServerProcess(*flags, folder=folder) as server, client(server) as api:
            for each in GREEDY:
                assert generated(api, "tiny", each["prompt"]) == each["text"]
    assert len((tmp_path / "bin" / "calls").read_text().splitlines()) == 1


def test_without_a_converter_the_load_says_what_to_install(tmp_path: Path) -> None:
    folder = hugging_face_folder(tmp_path / "tiny")
    none = converter_script(tmp_path / "bin", WRITES, version=None)
    with ServerProcess(*converting(none, tmp_path / "cache"), folder=folder) as server:
        assert server.wait() == 1
    assert "pip install 'optimum-intel[openvino]'" in server.log
    assert "Traceback" not in server.log


@needs_openvino_genai
@pytest.mark.skipif(not CONVERTER, reason="TRIOTON_TEST_CONVERTER names no interpreter with optimum-intel")
def test_a_real_conversion_generates_what_torch_does(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name in TEXT_FILES:
        shutil.copy(TINY / name, folder / name)
    build = "import pathlib, sys; from tests.backends.engines.tiny_llama.build import make_model; "
    subprocess.run([CONVERTER, "-c", f"{build} make_model(pathlib.Path(sys.argv[1]))", folder], check=True)
    (folder / "config.pbtxt").write_text(FLOAT32)
    with (
        ServerProcess(*converting(CONVERTER, tmp_path / "cache"), folder=folder) as server,
        client(server) as api,
    ):
        for each in GREEDY:
            assert generated(api, "tiny", each["prompt"]) == each["text"]
