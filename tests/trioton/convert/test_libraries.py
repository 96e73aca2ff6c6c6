"""`trioton convert` of what other libraries than torch have made, by its command; each runs in other processes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repository.model_config import ModelConfig
from repository.pbtxt import parse_pbtxt

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FEATURES = 5
# Of all programs below: rows, and targets of two classes, of three, and numbers.
DATA = """
import numpy as np
X = np.load("all.npz")["rows"]
two, three, numbers = (X.sum(1) > 0).astype(int), np.digitize(X[:, 0] + X[:, 1], [-1, 1]), 2 * X[:, 0] + X[:, 1] ** 2
"""
FORESTS = f"""{DATA}
import lightgbm, treelite, xgboost
def boosted(name, objective, target, **more):
    rows = xgboost.DMatrix(X, target)
    xgboost.train({{"objective": objective, "max_depth": 3, **more}}, rows, 10).save_model(name)
def light(name, objective, target, **more):
    settings = {{"objective": objective, "verbose": -1, "num_leaves": 7, **more}}
    lightgbm.train(settings, lightgbm.Dataset(X, target), 10).save_model(name)
boosted("two.json", "binary:logistic", two)
boosted("raw.json", "binary:logitraw", two)
light("three.txt", "multiclass", three, num_class=3)
light("numbers.txt", "regression", numbers)
treelite.frontend.load_xgboost_model("two.json", format_choice="json").serialize("two.tl")
"""
PIPELINES = f"""{DATA}
import joblib, pandas
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
words = np.array(["no", "yes"])[two]
joblib.dump(make_pipeline(StandardScaler(), LogisticRegression()).fit(X, words), "words.joblib")
joblib.dump(PCA(2).fit(X), "pca.pkl")
table = pandas.DataFrame({{"size": X[:, 0], "colour": np.array(["red", "green", "blue"])[three]}})
columns = ColumnTransformer([("a", StandardScaler(), ["size"]), ("b", OneHotEncoder(), ["colour"])])
joblib.dump(make_pipeline(columns, LogisticRegression()).fit(table, two), "columns.pkl")
joblib.dump({{"no": "model"}}, "none.pkl")
"""
SAVED_MODEL = """
import tensorflow as tf
class Model(tf.Module):
    def __init__(self):
        super().__init__()
        self.weights = tf.Variable(tf.random.stateless_normal([5, 3], seed=[1, 2]))
    @tf.function(input_signature=[tf.TensorSpec([None, 5], tf.float32, name="x")])
    def __call__(self, x):
        scores = tf.nn.softmax(x @ self.weights)
        return {"scores": scores, "largest": tf.reduce_max(scores, axis=1)}
model = Model()
tf.saved_model.save(model, "animals", signatures=model.__call__)
"""
HUGGING_FACE = """
import torch, transformers
torch.manual_seed(0)
sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
more = dict(vocab_size=50, max_position_embeddings=64) if "{kind}" == "Bert" else dict(image_size=32, patch_size=8)
config = transformers.{kind}Config(**sizes, **more)
transformers.{kind}{head}(config).save_pretrained("folder")
"""


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what the programs make, once for all tests, with rows by the names of the inputs of all sources."""
    folder = tmp_path_factory.mktemp("made")
    rows = np.random.default_rng(0).standard_normal((300, FEATURES)).astype(np.float32)
    np.savez(folder / "all.npz", rows=rows)
    np.savez(folder / "rows.npz", input__0=rows[:40], input=rows[:40], x=rows[:40])
    colours = np.resize(np.array(["red", "green", "blue"]), (40, 1))
    np.savez(folder / "columns.npz", size=rows[:40, :1], colour=colours)
    return folder


@pytest.fixture(scope="module")
def forests(models: Path) -> Path:
    make(FORESTS, models)
    return models


@pytest.fixture(scope="module")
def pipelines(models: Path) -> Path:
    make(PIPELINES, models)
    return models


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(program: str, place: Path) -> None:
    subprocess.run([sys.executable, "-c", program], cwd=place, check=True, capture_output=True)


def trioton(*words: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, since the model that is written is looked at with its library."""
    return subprocess.run([sys.executable, "-m", "trioton", *words], capture_output=True, text=True, check=False)


def convert(source: Path, *words: str, samples: str = "rows.npz") -> dict[str, Any]:
    """Outcomes by the candidate; the model is called `m`."""
    common = (f"--samples={source.parent / samples}", "--load-secs=0", "--name=m", "--force")
    done = trioton("convert", str(source), "models", *common, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(Path("m.convert", "report.json").read_text())
    return {outcome["name"]: outcome for outcome in report["outcomes"]}


def passed(outcomes: dict[str, Any]) -> dict[str, bool]:
    return {name: outcome["is_passed"] for name, outcome in outcomes.items()}


def config() -> ModelConfig:
    return parse_pbtxt(Path("models/m/config.pbtxt").read_text(), source="config.pbtxt")


def parameters() -> dict[str, str]:
    return {name: each.string_value for name, each in config().parameters.items()}


PROBABILITIES = {"is_classifier": "true", "predict_proba": "true"}
SCORES = {"is_classifier": "false"}


@needs("xgboost", "lightgbm", "treelite", "onnxmltools")
@pytest.mark.parametrize(
    ("source", "filename", "width", "told", "is_onnx_equal"),
    [
        ("two.json", "xgboost.json", 2, PROBABILITIES, True),
        ("three.txt", "model.txt", 3, PROBABILITIES, True),
        ("numbers.txt", "model.txt", 1, SCORES, True),
        ("two.tl", "checkpoint.tl", 2, PROBABILITIES, None),
        # What the converter makes of this answers probabilities in place of scores.
        ("raw.json", "xgboost.json", 1, SCORES, False),
    ],
)
def test_a_forest_is_served_as_it_is_and_as_onnx(
    forests: Path, place: Path, source: str, filename: str, width: int, told: dict[str, str], is_onnx_equal: bool | None
) -> None:
    more = {} if is_onnx_equal is None else {"onnx": is_onnx_equal}
    assert passed(convert(forests / source)) == {"as-is": True, **more}
    assert (config().backend, parameters()) == ("fil", told)
    assert [(each.name, each.dims) for each in config().output] == [("output__0", (width,))]
    assert Path("models/m/1", filename).exists()
    assert trioton("doctor", "models").returncode == 0


@needs("sklearn", "skl2onnx", "pandas")
@pytest.mark.parametrize(
    ("source", "samples", "inputs", "outputs"),
    [
        ("words.joblib", "rows", {"input": "FP32"}, {"label": ("BYTES", (1,)), "probabilities": ("FP32", (2,))}),
        ("pca.pkl", "rows", {"input": "FP32"}, {"variable": ("FP32", (2,))}),
        (
            "columns.pkl",
            "columns",
            {"size": "FP32", "colour": "BYTES"},
            {"label": ("INT64", (1,)), "probabilities": ("FP32", (2,))},
        ),
    ],
)
def test_a_pipeline_becomes_onnx(
    pipelines: Path,
    place: Path,
    source: str,
    samples: str,
    inputs: dict[str, str],
    outputs: dict[str, tuple[str, tuple[int, ...]]],
) -> None:
    assert passed(convert(pipelines / source, samples=f"{samples}.npz")) == {"onnx": True}
    assert {each.name: each.data_type.name for each in config().input} == inputs
    assert {each.name: (each.data_type.name, each.dims) for each in config().output} == outputs


@needs("sklearn", "pandas")
def test_a_pickle_of_something_else(pipelines: Path, place: Path) -> None:
    done = trioton("convert", str(pipelines / "none.pkl"), "models")
    assert done.returncode == 1
    assert "the pickle holds no model of scikit-learn: dict" in done.stderr


@needs("transformers", "onnxscript", "openvino")
@pytest.mark.parametrize(
    ("kind", "head", "inputs"),
    [
        ("Bert", "ForSequenceClassification", {"input_ids": (-1,), "attention_mask": (-1,)}),
        ("ViT", "ForImageClassification", {"pixel_values": (3, 32, 32)}),
    ],
)
def test_a_folder_of_hugging_face(place: Path, kind: str, head: str, inputs: dict[str, tuple[int, ...]]) -> None:
    make(HUGGING_FACE.format(kind=kind, head=head), place)
    done = trioton("convert", "folder", "models", "--load-secs=0", "--name=m", "--to=onnx", "--to=openvino")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {each.name: each.dims for each in config().input} == inputs
    assert [(each.name, each.dims) for each in config().output] == [("logits", (2,))]
    assert json.loads(Path("m.convert/report.json").read_text())["not_passed"] == []


@needs("tensorflow", "tf2onnx", "openvino")
def test_a_saved_model_is_served_as_it_is_and_converted(models: Path, place: Path) -> None:
    make(SAVED_MODEL, models)
    outcomes = convert(models / "animals")
    assert passed(outcomes) == {"as-is": True, "onnx": True, "openvino": True}
    assert outcomes["openvino"]["measured"]["error"] < 1e-5
    assert {each.name: each.dims for each in config().output} == {"scores": (3,), "largest": (1,)}
    assert Path("models/m/1/model.savedmodel/saved_model.pb").exists()
