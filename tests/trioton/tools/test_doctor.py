"""`trioton doctor`, by its command: a repository with every kind of fault, and one without any."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backends.requirements import framework_missing
from tests.e2e.repository import add_add_sub, build_repository
from trioton.cli import main
from trioton.tools.mends import mend_of

pytestmark = pytest.mark.slow

PYTHON = """
class TritonPythonModel:
    def execute(self, requests):
        return []
"""
TENSORS = (
    'input [ { name: "X" data_type: TYPE_FP32 dims: [ 2 ] } ]\n'
    'output [ { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] } ]\n'
)


def add_python(repository: Path, name: str, config: str = TENSORS, program: str = PYTHON) -> Path:
    """A model of Python; answers its directory."""
    model = repository / name
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(program)
    (model / "config.pbtxt").write_text(f'backend: "python"\n{config}')
    return model


def examine(*words: str | Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of the command."""
    code = main(["doctor", *map(str, words), "--json"])
    shown = capsys.readouterr()
    assert shown.err == ""
    report: dict[str, Any] = json.loads(shown.out)
    assert report["ok"] == (code == 0)
    return code, report


def findings(repository: Path, name: str, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str, str]]:
    """Level, text and mend of what is said about one model; everything else is well."""
    _, report = examine(repository, capsys=capsys)
    assert [other for other, found in report["models"].items() if found["findings"] and other != name] == []
    return [(one["level"], one["text"], one["mend"]) for one in report["models"][name]["findings"]]


def test_a_good_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the tests' own server serves; nothing is said but that."""
    build_repository(tmp_path)
    assert main(["doctor", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "add_sub: ok" in lines
    assert all(line.endswith(": ok") for line in lines[:-1])
    assert lines[-1].endswith(" models, 0 errors, 0 warnings")


def test_by_the_installed_command(tmp_path: Path) -> None:
    """As text, with the exit code for scripts."""
    add_python(tmp_path, "m", "max_batch: 4\n" + TENSORS)
    command = [sys.executable, "-m", "trioton", "doctor", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == ""
    words = " ".join(done.stdout.split())
    assert "m error: " in words
    assert "has no field named \"max_batch\". Did you mean 'max_batch_size'? mend: write max_batch_size" in words
    assert done.stdout.splitlines()[-1] == "1 model, 1 error, 0 warnings"


def test_calls_that_cannot_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model with them loads, so they are warnings."""
    program = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_info(5)
        return [pb_utils.InferenceRequest(model_name="other", inputs=r.inputs()).exec() for r in requests]
"""
    model = add_python(tmp_path, "m", program=program)
    path = model / "1" / "model.py"
    assert findings(tmp_path, "m", capsys) == [
        ("warning", f"version 1: {path}:6: Logger.log_info: message must be str or bytes, got 5", ""),
        ("warning", f"version 1: {path}:7: InferenceRequest: missing required arguments: requested_output_names", ""),
    ]


def test_all_faults_of_a_configuration_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown names with the nearest, and what is wrong besides, as if those were mended."""
    config = """
max_batch_size: 4
input [ { nam: "A" data_type: TYPE_FLOAT dims: [ 0 ] }, { name: "B" } ]
output [ { name: "C" data_type: TYPE_FP32 dims: [ 1 ] label_filename: "labels.txt" } ]
instance_group [ { kind: KIND_CPU gpus: [ 1 ] } ]
dynamic_batching { preferred_batch_size: 9 }
"""
    path = add_python(tmp_path, "m", config) / "config.pbtxt"
    told = findings(tmp_path, "m", capsys)
    assert {level for level, _, _ in told} == {"error"}
    assert [text.removeprefix(f"{path}:") for _, text, _ in told] == [
        '4:11: Message type "inference.ModelInput" has no field named "nam". Did you mean \'name\'?',
        "4:32: Enum type \"inference.DataType\" has no value named TYPE_FLOAT. Did you mean 'TYPE_FP32'?",
        "model input 'A' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
        "model input 'B' must specify 'data_type' for m",
        "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs",
        "dynamic batching preferred size must be <= max batch size for m",
    ]
    assert all(mend for _, _, mend in told)


@pytest.mark.parametrize("field", ["cc_model_filenames: {}", 'cc_model_filenames { key: "80" value: "model.py" }'])
def test_files_for_gpus_that_cannot_be(field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server takes them without effect, as Triton does."""
    add_python(tmp_path, "m", f"{TENSORS} {field}")
    ((level, text, _),) = findings(tmp_path, "m", capsys)
    assert level == "warning"
    assert "which no GPU takes" in text


def no_version(repository: Path) -> None:
    (add_python(repository, "m") / "1" / "model.py").rename(repository / "m" / "model.py")
    (repository / "m" / "1").rmdir()


def wrong_version(repository: Path) -> None:
    add_python(repository, "m")
    (repository / "m" / "v02").mkdir()


def wrong_file(repository: Path) -> None:
    (add_python(repository, "m") / "1" / "model.py").rename(repository / "m" / "1" / "mine.py")


def wrong_config_name(repository: Path) -> None:
    add_add_sub(repository / "m", versions=(1,))
    (repository / "m" / "config.pbtxt").rename(repository / "m" / "config.pbtxt.txt")


def wrong_name(repository: Path) -> None:
    add_python(repository, "m", f'name: "n"\n{TENSORS}')


def absent_version(repository: Path) -> None:
    add_python(repository, "m", f"{TENSORS} version_policy {{ specific {{ versions: [ 1, 7 ] }} }}")


def unknown_backend(repository: Path) -> None:
    add_python(repository, "m")
    (repository / "m" / "config.pbtxt").write_text('backend: "pyton"\n')


def absent_labels(repository: Path) -> None:
    output = 'output [ { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "l.txt" } ]'
    add_python(repository, "m", f"{TENSORS.splitlines()[0]}\n{output}")


def too_few_labels(repository: Path) -> None:
    absent_labels(repository)
    (repository / "m" / "l.txt").write_text("cat\n")


def absent_warmup(repository: Path) -> None:
    sample = 'name: "w" batch_size: 1 inputs { key: "X" value { data_type: TYPE_FP32 dims: 2 input_data_file: "x" } }'
    add_python(repository, "m", f"{TENSORS} model_warmup [ {{ {sample} }} ]")


def absent_environment(repository: Path) -> None:
    path = '"$$TRITON_MODEL_DIRECTORY/env.tar.gz"'
    add_python(
        repository, "m", f'{TENSORS} parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: {path} }} }}'
    )


def absent_package(repository: Path) -> None:
    add_python(repository, "m", program=f"import no_such_package\n{PYTHON}")


def broken_program(repository: Path) -> None:
    add_python(repository, "m", program=f"{PYTHON}\ndef f(:\n")


def program_without_class(repository: Path) -> None:
    add_python(repository, "m", program="class Model:\n    pass\n")


def wrong_dims(repository: Path) -> None:
    add_add_sub(repository / "m", versions=(1,))
    lists = [
        ", ".join(f'{{ name: "{word}{index}" data_type: TYPE_FP32 dims: [ 15 ] }}' for index in (0, 1))
        for word in ("INPUT", "OUTPUT")
    ]
    (repository / "m" / "config.pbtxt").write_text("max_batch_size: 4 input [ {} ] output [ {} ]".format(*lists))


def not_onnx(repository: Path) -> None:
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "1" / "model.onnx").write_text("not a model")


def plan_without_gpu(repository: Path) -> None:
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "1" / "model.plan").write_bytes(b"an engine")
    (repository / "m" / "config.pbtxt").write_text("instance_group { kind: KIND_CPU }")


def unknown_agent(repository: Path) -> None:
    add_python(repository, "m", f'{TENSORS} model_repository_agents {{ agents {{ name: "checksums" }} }}')


def decoupled_onnx(repository: Path) -> None:
    add_add_sub(repository / "m", versions=(1,))
    (repository / "m" / "config.pbtxt").write_text("model_transaction_policy { decoupled: true }")


def caffe2(repository: Path) -> None:
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "1" / "model.netdef").touch()


def not_jax(repository: Path) -> None:
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "1" / "model.jax").write_text("not a model")


# What is wrong, and what must be said about it: the level, words of the text, words of the mend.
FAULTS = [
    (no_version, "error", "there is no version directory", "with the model file 'model.py'"),
    (wrong_version, "warning", "directory 'v02' is skipped", "rename it to 2"),
    (wrong_file, "error", "version 1 has no file 'model.py'", "rename 'mine.py' to 'model.py'"),
    (wrong_config_name, "warning", "'config.pbtxt.txt' is not read", "rename it to config.pbtxt"),
    (wrong_name, "error", "unexpected directory name 'm' for model 'n'", "remove the line `name"),
    (absent_version, "warning", "version 7 is in version_policy", "make it, or take it out"),
    (unknown_backend, "error", "Did you mean 'python'?", "write python"),
    (absent_labels, "error", "failed to read label file", "put the file into the model's directory"),
    (too_few_labels, "warning", "has 1 labels, but output 'Y' has 2 classes", "give each class a line"),
    (absent_warmup, "error", "warmup setting for input 'X': cannot read file", "folder 'warmup'"),
    (absent_environment, "error", "Failed to get the canonical path", "correct EXECUTION_ENV_PATH"),
    (absent_package, "error", "No module named 'no_such_package'", "install no_such_package"),
    (broken_program, "error", "invalid syntax", ""),
    (program_without_class, "error", "TritonPythonModel", ""),
    (wrong_dims, "error", "tensor 'INPUT0': the model expects 2 dimensions", "make `dims` what the model has"),
    (not_onnx, "error", "model.onnx", ""),
    (decoupled_onnx, "error", "which backend 'onnxruntime' does not support", "remove it, or"),
    (caffe2, "error", "Caffe2 is no longer maintained", "put it there as model.onnx"),
    (not_jax, "error", "cannot be read as a function of jax.export", "what `exported.serialize()` returns"),
    (plan_without_gpu, "error", "TensorRT backend supports only GPU device", "where there is an NVIDIA GPU"),
    (unknown_agent, "error", "repository agent 'checksums'", "correct the agent's name"),
]


@pytest.mark.parametrize(("break_it", "level", "text", "mend"), FAULTS, ids=[row[0].__name__ for row in FAULTS])
def test_faults_and_their_mends(
    break_it: Any, level: str, text: str, mend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    break_it(tmp_path)
    told = findings(tmp_path, "m", capsys)
    assert any(each == level and text in what and mend in how for each, what, how in told), told
    assert len([each for each, _, _ in told if each == level]) == 1, told


@pytest.fixture
def ensemble(tmp_path: Path) -> Path:
    """A repository with an ensemble of one step; answers the ensemble's configuration."""
    add_add_sub(tmp_path / "sums", versions=(1,))
    maps = 'input_map { key: "INPUT0" value: "A" } input_map { key: "INPUT1" value: "B" }'
    outputs = 'output_map { key: "OUTPUT0" value: "C" }'
    tensor = '{{ name: "{}" data_type: TYPE_FP32 dims: [ 16 ] }}'
    (tmp_path / "both" / "1").mkdir(parents=True)
    config = tmp_path / "both" / "config.pbtxt"
    config.write_text(
        f'platform: "ensemble"\nmax_batch_size: 8\ninput [ {tensor.format("A")}, {tensor.format("B")} ]\n'
        f"output [ {tensor.format('C')} ]\n"
        f'ensemble_scheduling {{ step [ {{ model_name: "sums" model_version: -1 {maps} {outputs} }} ] }}\n'
    )
    return config


def test_the_wiring_of_an_ensemble(ensemble: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = ensemble.parent.parent
    assert examine(repository, capsys=capsys)[0] == 0
    good = ensemble.read_text()
    ensemble.write_text(good.replace('"INPUT1" value', '"INPUT2" value'))
    ((_, text, mend),) = findings(repository, "both", capsys)
    assert "mapping to non-existing input INPUT2 in model sums" in text
    assert "names of the step's model" in mend
    ensemble.write_text(good.replace('"sums"', '"sum"'))
    ((_, text, mend),) = findings(repository, "both", capsys)
    assert text.endswith("models that are not available or ambiguous: sum")
    assert mend == "there is no model 'sum'; did you mean 'sums'?"
    ensemble.write_text(good.replace('"sums"', '"both"'))
    ((_, text, _),) = findings(repository, "both", capsys)
    assert text == "circular dependency between ensembles: both -> both"


def test_an_ensemble_waits_for_its_models(ensemble: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fault is told of the model that has it; of the ensemble, that it needs that one."""
    (ensemble.parent.parent / "sums" / "config.pbtxt").write_text("max_batch_size: -1")
    code, report = examine(ensemble.parent.parent, capsys=capsys)
    assert code == 1
    assert "'max_batch_size' must be" in report["models"]["sums"]["findings"][0]["text"]
    assert report["models"]["both"]["findings"][0]["mend"] == "mend model 'sums' first"


def test_places_that_are_no_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_python(tmp_path, "m")
    (tmp_path / "file").touch()
    for path, text in (
        (tmp_path / "absent", "does not exist"),
        (tmp_path / "file", "is no directory"),
        (tmp_path / "m", "is the directory of one model, not a repository"),
    ):
        code, report = examine(path, capsys=capsys)
        assert code == 1
        assert text in report["findings"][0]["text"]
        assert report["findings"][0]["mend"]


def test_what_lies_where_no_model_is_looked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A warning: the rest is served."""
    (tmp_path / "model.onnx").touch()
    (tmp_path / ".trioton-add-1").mkdir()
    code, report = examine(tmp_path, capsys=capsys)
    assert code == 0
    assert [one["level"] for one in report["findings"]] == ["warning", "warning", "warning"]
    assert "trioton repo add" in report["findings"][0]["mend"]
    assert report["findings"][1]["mend"] == f"remove it: {tmp_path / '.trioton-add-1'}"
    assert "holds no models" in report["findings"][2]["text"]


def test_a_model_in_two_repositories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "other"):
        add_python(tmp_path / name, "m")
    code, report = examine(tmp_path / "one", tmp_path / "other", capsys=capsys)
    assert code == 1
    assert "appears in two or more repositories" in report["models"]["m"]["findings"][0]["text"]


def test_the_flags_of_a_server_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without completion a configuration is needed, and it may have another name."""
    add_add_sub(tmp_path / "m", versions=(1,))
    (tmp_path / "m" / "configs").mkdir()
    (tmp_path / "m" / "config.pbtxt").rename(tmp_path / "m" / "configs" / "big.pbtxt")
    assert examine(tmp_path, capsys=capsys)[0] == 0
    code, report = examine(tmp_path, "--disable-auto-complete-config", capsys=capsys)
    assert code == 1
    assert "model configuration is not provided" in report["models"]["m"]["findings"][0]["text"]
    code, report = examine(tmp_path, "--disable-auto-complete-config", "--model-config-name=big", capsys=capsys)
    assert "configuration expects 0 inputs, model provides 2" in report["models"]["m"]["findings"][0]["text"]


def test_a_missing_framework_is_named_with_what_brings_it(tmp_path: Path) -> None:
    add_add_sub(tmp_path / "m", versions=(1,))
    program = "import sys; sys.modules['onnxruntime'] = None; from trioton.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "doctor", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (finding,) = json.loads(done.stdout)["models"]["m"]["findings"]
    assert "model 'm' needs the onnxruntime package" in finding["text"]
    assert finding["mend"] == "pip install 'trioton[cpu]'"


def test_the_mend_of_a_missing_framework_is_the_extra_that_brings_it() -> None:
    """An environment of the model's own is a way out for a `model.py` alone."""
    error = ModuleNotFoundError("No module named 'openvino'", name="openvino")
    assert mend_of(framework_missing("openvino", model="m", error=error).message) == "pip install 'trioton[openvino]'"


def test_nothing_to_look_at_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[0].startswith("usage: trioton doctor")
    assert "takes one or more model repositories" in shown.err
