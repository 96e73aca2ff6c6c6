"""`trioton repo add`, by its command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from protocol.datatypes import DataType
from repository.model_config import ModelInput, ModelOutput
from repository.pbtxt import parse_pbtxt
from tests.backends.engines.conversion.scripts import hugging_face_folder
from tests.backends.test_custom_backend import backend_class
from tests.e2e.client import Client, add_sub_inputs
from tests.e2e.repository import add_add_sub
from tests.e2e.server_process import ServerProcess, eventually
from trioton.cli import main

pytestmark = pytest.mark.slow

__all__ = ["backend_class"]  # the fixture

PYTHON = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [2]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [2]})
        config.set_max_batch_size(16)
        return config

    def execute(self, requests):
        return []
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A model file of ONNX, outside of any repository."""
    add_add_sub(tmp_path / "made", versions=(1,))
    return (tmp_path / "made" / "1" / "model.onnx").rename(tmp_path / "sums.onnx")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "models"


def add(*words: str | Path) -> int:
    return main(["repo", "add", *map(str, words)])


def tree(path: Path) -> list[str]:
    """All files below, also hidden ones."""
    return sorted(str(each.relative_to(path)) for each in path.rglob("*") if each.is_file())


def test_an_onnx_file(file: Path, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The repository is made, too; the configuration says what the model takes and gives, and nothing else."""
    assert add(repository, file) == 0
    assert tree(repository) == ["sums/1/model.onnx", "sums/config.pbtxt"]
    assert (repository / "sums" / "config.pbtxt").read_text() == (
        'backend: "onnxruntime"\nmax_batch_size: 4\n'
        'input [\n  { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] },\n'
        '  { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] }\n]\n'
        'output [\n  { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] },\n'
        '  { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 16 ] }\n]\n'
        "dynamic_batching {}\n"
    )
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.startswith(f"added 'sums', version 1: {repository / 'sums'}\n  onnxruntime, batches of up to 4\n")
    assert main(["doctor", str(repository)]) == 0


def test_the_short_configuration_says_all(file: Path, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Read again it is completed to what the model was judged with."""
    assert add(repository, file, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert main(["config", str(repository / "sums"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == told["config"]


@pytest.mark.e2e
def test_a_server_that_polls_takes_it_up(file: Path, repository: Path) -> None:
    """The model, and then its next version."""
    repository.mkdir()
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1")
    with ServerProcess(*flags, repository=repository) as server, Client("http", server.addresses["http"]) as client:
        assert add(repository, file) == 0
        assert eventually(lambda: client.raw.is_model_ready("sums", "1"))
        assert add(repository, file, "--version=2") == 0
        assert eventually(lambda: client.raw.is_model_ready("sums", "2"))
        assert "UNAVAILABLE" not in server.log


@pytest.mark.e2e
def test_a_server_serves_what_was_added(file: Path, repository: Path) -> None:
    assert add(repository, file, "--name=added", "--max-batch-size=32") == 0
    with ServerProcess(repository=repository) as server, Client("http", server.addresses["http"]) as client:
        assert client.infer("added", add_sub_inputs(32))["OUTPUT0"].shape == (32, 16)


def test_what_is_there_stays(file: Path, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert add(repository, file) == 0
    (repository / "sums" / "config.pbtxt").write_text("# mine\nmax_batch_size: 2\n")
    capsys.readouterr()
    assert add(repository, file) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "model 'sums' is in the repository already with version 1; --version 2 adds a version, --force replaces the "
        "one that is there"
    )
    assert add(repository, file, "--version=2") == 0
    assert tree(repository) == ["sums/1/model.onnx", "sums/2/model.onnx", "sums/config.pbtxt"]
    assert (repository / "sums" / "config.pbtxt").read_text() == "# mine\nmax_batch_size: 2\n"
    assert add(repository, file, "--version=2") == 1


def test_a_configuration_may_be_given(
    file: Path, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is taken as it is, where a server would."""
    config = tmp_path / "mine.pbtxt"
    config.write_text("# mine\nmax_batch_size: 2\n")
    assert add(repository, file, f"--config={config}") == 0
    assert (repository / "sums" / "config.pbtxt").read_text() == config.read_text()
    config.write_text("max_batch: 2\n")
    assert add(repository, file, "--name=other", f"--config={config}") == 1
    told = capsys.readouterr().err
    assert f"{repository / 'other' / 'config.pbtxt'}:1:1: " in told
    assert "mend: write max_batch_size" in told
    assert add(repository, file, "--name=other", "--config=/no/such") == 1
    assert "--config: '/no/such' is no file" in capsys.readouterr().err
    assert [each.name for each in repository.iterdir()] == ["sums"]


def test_force_replaces_a_version(file: Path, repository: Path) -> None:
    """And leaves the others and the configuration."""
    assert add(repository, file) == 0
    (repository / "sums" / "1" / "old").touch()
    config = repository / "sums" / "config.pbtxt"
    config.write_text(f"# mine\n{config.read_text()}")
    assert add(repository, file, "--force") == 0
    assert tree(repository) == ["sums/1/model.onnx", "sums/config.pbtxt"]
    assert config.read_text().startswith("# mine")


def test_a_new_version_must_fit_the_configuration(
    file: Path, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add(repository, file) == 0
    model = onnx.load(file)
    model.graph.input[0].name = "OTHER"
    model.graph.node[0].input[0] = model.graph.node[1].input[0] = "OTHER"
    onnx.save(model, tmp_path / "other.onnx")
    before = tree(repository)
    capsys.readouterr()
    assert add(repository, tmp_path / "other.onnx", "--name=sums", "--version=2") == 1
    told = capsys.readouterr().err
    assert "is not added, a server would not load it: " in told
    assert "unexpected inference input 'INPUT0', allowed inputs are: INPUT1, OTHER" in told
    assert "mend: use the model's names" in told
    assert tree(repository) == before


@pytest.mark.parametrize("content", [b"not a model", b""])
def test_what_a_server_would_not_load_leaves_nothing(
    content: bytes, tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.onnx").write_bytes(content)
    assert add(repository, tmp_path / "bad.onnx") == 1
    assert "a server would not load it" in capsys.readouterr().err
    assert list(repository.iterdir()) == []


def test_a_python_model_is_named_after_its_folder(tmp_path: Path, repository: Path) -> None:
    """Its configuration is what its `auto_complete_config` makes of it."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.py").write_text(PYTHON)
    assert add(repository, tmp_path / "mine" / "model.py") == 0
    assert tree(repository) == ["mine/1/model.py", "mine/config.pbtxt"]
    config = parse_pbtxt((repository / "mine" / "config.pbtxt").read_text(), source="written")
    assert (config.backend, config.max_batch_size, config.input[0].name) == ("python", 16, "X")


def test_a_folder_of_a_model_and_what_it_needs(tmp_path: Path, repository: Path) -> None:
    """What lies beside the model file comes along; labels and what belongs to the whole model go to their places."""
    source = tmp_path / "mine"
    (source / "warmup").mkdir(parents=True)
    (source / "__pycache__").mkdir()
    for name in ("helper.py", "labels.txt", "warmup/x", ".hidden", "__pycache__/c"):
        (source / name).touch()
    (source / "model.py").write_text(PYTHON)
    assert add(repository, source) == 0
    assert tree(repository / "mine") == ["1/helper.py", "1/model.py", "config.pbtxt", "labels.txt", "warmup/x"]


def test_a_file_keeps_its_suffix_for_the_backend_that_was_asked_for(file: Path, repository: Path) -> None:
    """As the usual name where the backend has one of this suffix; some tell by it what they read."""
    pytest.importorskip("openvino")
    assert add(repository, file, "--backend=openvino") == 0
    assert tree(repository) == ["sums/1/model.onnx", "sums/config.pbtxt"]
    config = parse_pbtxt((repository / "sums" / "config.pbtxt").read_text(), source="written")
    assert (config.backend, config.default_model_filename) == ("openvino", "model.onnx")


def test_the_second_kind_of_file_of_a_backend(tmp_path: Path, repository: Path) -> None:
    from tests.backends.pytorch.torch_models import Identity, save_exported

    save_exported(Identity(), tmp_path / "made", "", (2, 3), dims=[0])
    assert add(repository, tmp_path / "made" / "1" / "model.pt2", "--backend=pytorch", "--name=m") == 0
    assert tree(repository) == ["m/1/model.pt2", "m/config.pbtxt"]


def test_a_module_of_torch_is_told_what_it_needs(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its file says nothing of its tensors, and is no model of the python backend."""
    file = tmp_path / "net.py"
    file.write_text("import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x\n")
    assert add(repository, file) == 1
    assert '`backend: "pytorch"` and `runtime: "model.py"`' in capsys.readouterr().err
    assert add(repository, file, "--backend=pytorch") == 1
    assert "'net.py' does not tell the inputs and outputs of its module: list them in" in capsys.readouterr().err
    config = tmp_path / "config.pbtxt"
    config.write_text("""
backend: "pytorch"
runtime: "model.py"
input [ { name: "X" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 3 ] } ]
""")
    assert add(repository, file, "--backend=pytorch", f"--config={config}") == 0
    assert tree(repository) == ["net/1/model.py", "net/config.pbtxt"]


def test_the_folder_of_a_saved_model(tmp_path: Path, repository: Path) -> None:
    """Its inputs and outputs are read from its signature."""
    pytest.importorskip("tensorflow")
    from tests.backends.tensorflow.tensorflow_models import sum_of

    sum_of(tmp_path).rename(tmp_path / "sums")
    assert add(repository, tmp_path / "sums", "--max-batch-size=2") == 0
    assert "sums/1/model.savedmodel/saved_model.pb" in tree(repository)
    config = parse_pbtxt((repository / "sums" / "config.pbtxt").read_text(), source="written")
    assert (config.backend, config.max_batch_size) == ("tensorflow", 2)
    assert ([entry.name for entry in config.input], config.output[0].name) == (["A", "B"], "SUM")


def test_a_graph_that_does_not_tell_its_outputs_is_told_what_to_write(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorflow")
    from tests.backends.tensorflow.tensorflow_models import sum_graph

    file = sum_graph(tmp_path)
    assert add(repository, file) == 1
    told = capsys.readouterr().err
    assert "its inputs are 'A' (TYPE_FP32, [-1, 3]), 'B' (TYPE_FP32, [-1, 3])" in told
    assert "mend: list its inputs and outputs in a config.pbtxt" in told
    config = tmp_path / "config.pbtxt"
    config.write_text("""
max_batch_size: 2
input [ { name: "A" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "B" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 3 ] } ]
""")
    assert add(repository, file, "--name=sums", f"--config={config}") == 0
    assert tree(repository) == ["sums/1/model.graphdef", "sums/config.pbtxt"]


def test_a_whole_model_directory(tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its versions, and its own configuration as it is."""
    add_add_sub(tmp_path / "sums", versions=(1, 2))
    (tmp_path / "sums" / "config.pbtxt").write_text("# mine\nmax_batch_size: 2 version_policy { all {} }\n")
    assert add(repository, tmp_path / "sums", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["versions"], told["config"]["max_batch_size"]) == ("sums", [1, 2], 2)
    assert tree(repository) == ["sums/1/model.onnx", "sums/2/model.onnx", "sums/config.pbtxt"]
    assert (repository / "sums" / "config.pbtxt").read_text().startswith("# mine\n")
    (repository / "sums" / "stray").touch()
    assert add(repository, tmp_path / "sums") == 1
    assert add(repository, tmp_path / "sums", "--force") == 0
    assert "sums/stray" not in tree(repository)
    assert add(repository, tmp_path / "sums", "--name=other", "--version=3") == 1


def test_weights_in_a_file_of_their_own(file: Path, tmp_path: Path, repository: Path) -> None:
    """An ONNX file names them, so they keep their name."""
    model = onnx.load(file)
    weight = onnx.numpy_helper.from_array(np.ones(16, np.float32), "W")
    model.graph.initializer.append(weight)
    model.graph.node.append(onnx.helper.make_node("Add", ["INPUT0", "W"], ["OUTPUT2"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("OUTPUT2", onnx.TensorProto.FLOAT, ["N", 16]))
    onnx.save(model, tmp_path / "big.onnx", save_as_external_data=True, location="big.onnx.data", size_threshold=0)
    assert add(repository, tmp_path / "big.onnx") == 0
    assert tree(repository) == ["big/1/big.onnx.data", "big/1/model.onnx", "big/config.pbtxt"]


def test_a_function_of_jax_with_its_weights(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which are looked for by the name of the model file, whatever that is."""
    pytest.importorskip("jax")
    from tests.backends.jax.jax_models import exported, spec

    function = exported(lambda weights, x: x @ weights["kernel"], {"kernel": spec("3, 2")}, spec("rows, 3"))
    (tmp_path / "dense.jax").write_bytes(function.serialize())
    np.savez(tmp_path / "dense.npz", kernel=np.ones((3, 2), np.float32))
    assert add(repository, tmp_path / "dense.jax") == 0
    assert tree(repository) == ["dense/1/model.jax", "dense/1/model.npz", "dense/config.pbtxt"]
    config = parse_pbtxt((repository / "dense" / "config.pbtxt").read_text(), source="written")
    assert (config.backend, [entry.name for entry in config.input]) == ("jax", ["INPUT__0"])
    assert main(["doctor", str(repository)]) == 0
    np.savez(repository / "dense" / "1" / "model.npz", kernel=np.ones((2, 2), np.float32))
    capsys.readouterr()
    assert main(["doctor", str(repository)]) == 1
    assert "the function expects float32[3, 2] as 'kernel'" in capsys.readouterr().out


@pytest.mark.usefixtures("backend_class")
def test_a_backend_of_somebody_else(tmp_path: Path, repository: Path) -> None:
    """By the name that it has for its files; the configuration tells backend and file."""
    (tmp_path / "line.json").write_text('{ "weights": [[1], [2]], "bias": [0] }')
    assert add(repository, tmp_path / "line.json") == 0
    assert tree(repository) == ["line/1/weights.json", "line/config.pbtxt"]
    config = parse_pbtxt((repository / "line" / "config.pbtxt").read_text(), source="written")
    assert (config.backend, config.default_model_filename) == ("linear", "weights.json")
    assert add(repository, tmp_path / "line.json", "--name=named", "--backend=linear") == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["repo"], "trioton repo knows two words: add and conversions, got none"),
        (["repo", "remove"], "trioton repo knows two words: add and conversions, got remove"),
        (["repo", "add", "a"], "takes a repository and a model, got 1 places: a"),
        (["repo", "add", "s3://a", "b"], "'s3://a' is no folder on this machine"),
        (["repo", "add", "a", "/no/such"], "'/no/such' is neither a file nor a directory"),
        (["repo", "add", "a", os.devnull + ".json"], "is neither a file nor a directory"),
        (["repo", "add", "a", __file__ + "c", "--version=0"], "--version: expected a whole number"),
    ],
)
def test_usage_errors(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("usage: trioton repo add <repository>")
    assert text in shown.err
    assert shown.out == ""


def test_files_that_tell_nothing(file: Path, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is made, and the ways out are named."""
    other = file.rename(file.with_name("sums.bin"))
    assert add(repository, other) == 1
    assert "say what it is for with --backend" in capsys.readouterr().err
    assert not repository.exists()
    assert add(repository, other, "--backend=onnxruntime") == 0
    assert add(repository, other, "--backend=onnxruntme", "--name=m") == 1
    assert "Did you mean 'onnxruntime'?" in capsys.readouterr().err
    for name in ("../m", ".m"):
        assert add(repository, other, "--backend=onnxruntime", f"--name={name}") == 1
        assert "--name: " in capsys.readouterr().err
    assert add(repository, other.parent) == 1
    assert "must hold one file that is a model" in capsys.readouterr().err


def write_forests(folder: Path) -> dict[str, str]:
    """A file of each kind by whatever name people give it, with what the backend calls such a file."""
    import lightgbm
    import treelite
    import xgboost

    random = np.random.default_rng(0)
    rows, labels = random.normal(size=(50, 4)), random.integers(0, 2, 50)
    booster = xgboost.train({"max_depth": 2}, xgboost.DMatrix(rows, labels), num_boost_round=2)
    booster.save_model(folder / "fraud.json")
    booster.save_model(folder / "fraud.ubj")
    (folder / "no-suffix").write_bytes(booster.save_raw("ubj"))
    light = lightgbm.train({"num_leaves": 4, "verbose": -1}, lightgbm.Dataset(rows, labels), 2)
    light.save_model(str(folder / "churn.txt"))
    treelite.frontend.from_lightgbm(light).serialize(str(folder / "risk.tl"))
    return {
        "fraud.json": "xgboost.json",
        "fraud.ubj": "xgboost.ubj",
        "no-suffix": "xgboost.ubj",
        "churn.txt": "model.txt",
        "risk.tl": "checkpoint.tl",
    }


def test_forests(tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is in a file tells what wrote it; inputs and outputs are read from it."""
    for number, (name, filename) in enumerate(write_forests(tmp_path).items()):
        assert add(repository, tmp_path / name, f"--name=m{number}") == 0, capsys.readouterr().err
        assert tree(repository / f"m{number}") == [f"1/{filename}", "config.pbtxt"]
        config = parse_pbtxt((repository / f"m{number}" / "config.pbtxt").read_text(), source="test")
        assert config.backend == "fil"
    assert main(["doctor", str(repository)]) == 0


def test_only_what_the_file_needs_is_imported(file: Path, repository: Path) -> None:
    """A file of ONNX, and one that nobody knows, wait for no other framework."""
    other = file.with_name("m.unknown")
    other.write_bytes(b"x")
    for path, expected in ((file, 0), (other, 1)):
        program = (
            "import sys; from trioton.cli import main; "
            f"code = main(['repo', 'add', {str(repository)!r}, {str(path)!r}]); "
            "heavy = {'torch', 'tensorflow', 'jax', 'openvino', 'treelite', 'tensorrt'} & set(sys.modules); "
            f"sys.exit(f'imported: {{heavy}}' if heavy else code != {expected})"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_torchscript_with_its_inputs_and_outputs(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file does not tell them, so flags do; without them their names are in the mend."""
    import torch

    class Double(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    torch.jit.script(Double()).save(str(tmp_path / "double.pt"))  # type: ignore[no-untyped-call]
    assert add(repository, tmp_path / "double.pt") == 1
    assert "--input" in capsys.readouterr().err
    flags = ["--input=INPUT__0:FP32:3,-1", "--output", "OUTPUT__0:TYPE_FP32:[3, -1]", "--max-batch-size=4"]
    assert add(repository, tmp_path / "double.pt", *flags) == 0, capsys.readouterr().err
    config = parse_pbtxt((repository / "double" / "config.pbtxt").read_text(), source="test")
    assert config.input == (ModelInput("INPUT__0", DataType.FP32, dims=(3, -1)),)
    assert config.output == (ModelOutput("OUTPUT__0", DataType.FP32, dims=(3, -1)),)
    assert config.max_batch_size == 4


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "expected <name>:<type>:<dims>, as in INPUT__0:FP32:3,224,224, got 'x'"),
        (":FP32:1", "expected <name>:<type>:<dims>"),
        ("x:FLOAT:1", "there is no datatype FLOAT; expected one of BOOL, UINT8"),
        ("x:INVALID:1", "there is no datatype INVALID"),
        ("x:FP32:a", "dims are whole numbers, -1 for a size that varies"),
    ],
)
def test_tensors_that_are_none(
    text: str, reason: str, file: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add(repository, file, f"--input={text}") == 1
    assert f"--input: {reason}" in capsys.readouterr().err


def test_tensors_beside_a_configuration(file: Path, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file.parent / "config.pbtxt").write_text('backend: "onnxruntime"')
    flags = [f"--config={file.parent / 'config.pbtxt'}", "--input=a:0:STRING:"]
    assert add(repository, file, *flags) == 1
    assert "--input and --output are for models without a config.pbtxt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("m.keras", "export('my_model') writes a SavedModel; add that folder"),
        ("m.H5", "writes a SavedModel"),
        ("m.safetensors", "holds weights without the model they belong to"),
        ("m.pth", "--backend pytorch"),
        ("m.engine", "--backend tensorrt"),
        ("m.json", "nor a forest; say what it is for with --backend"),
    ],
)
def test_files_that_cannot_be_added_as_they_are(
    name: str, sentence: str, tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is told its way out."""
    (tmp_path / name).write_text("{}")
    assert add(repository, tmp_path / name) == 1
    assert sentence in capsys.readouterr().err
    assert not repository.exists()


def test_a_backend_that_is_not_there(file: Path, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert add(repository, file, "--backend=mine") == 1
    text = "One in Python may be a folder mine/model.py in a directory that --backend-directory names."
    assert text in capsys.readouterr().err


def test_a_language_model_is_copied_without_what_nobody_reads(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = hugging_face_folder(tmp_path / "Tiny Llama")
    (folder / "pytorch_model.bin").write_bytes(b"the same weights")
    assert add(folder, f"--repository={repository}", "--engine=scripted") == 0
    shown = capsys.readouterr().out
    assert "ask it: curl localhost:8000/v1/completions" in shown
    assert '"model": "Tiny-Llama"' in shown
    assert (repository / "Tiny-Llama" / "config.pbtxt").read_text() == 'backend: "scripted"\n'
    files = sorted(path.name for path in (repository / "Tiny-Llama" / "1").iterdir())
    assert files == sorted(set(os.listdir(folder)) - {"pytorch_model.bin"})
    assert add(repository, folder, "--engine=scripted") == 1
    assert "is in the repository already with version 1" in capsys.readouterr().err


def test_a_language_model_is_linked(tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = hugging_face_folder(tmp_path / "tiny")
    assert add(folder, f"--repository={repository}", "--engine=scripted", "--link") == 0
    assert tree(repository) == ["tiny/1/model.json", "tiny/config.pbtxt"]
    assert json.loads((repository / "tiny" / "1" / "model.json").read_text()) == {"model": str(folder)}
    assert add(folder, f"--repository={repository}", "--link", "--copy") == 1
    assert "--copy and --link exclude each other" in capsys.readouterr().err
    assert add(repository, __file__, "--link") == 1
    assert "--link is for the folder of a language model" in capsys.readouterr().err
