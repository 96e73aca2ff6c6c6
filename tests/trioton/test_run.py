"""`trioton run`: which directory a person means, and settings that suit a person at work. No server is started here."""

from __future__ import annotations

from pathlib import Path

import pytest

from repository.layout import ModelDirectory
from trioton.cli import main
from trioton.flags.fields import UsageError
from trioton.flags.server import BackendSetting
from trioton.run import find_run_model, run_settings

CONFIG = 'name: "named" backend: "python"\n'


def make(root: Path, *files: str) -> Path:
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CONFIG if path.name == "config.pbtxt" else "")
    return root


@pytest.mark.parametrize(
    ("files", "given", "name", "place", "is_flat"),
    [
        (["m/1/model.py"], "m", "m", "m", False),
        (["m/1/model.py"], "m/1", "m", "m", False),
        (["m/1/model.py"], "m/1/model.py", "m", "m", False),
        (["m/1/model.py", "m/config.pbtxt"], "m/config.pbtxt", "named", "m", False),
        (["m/3/model.onnx", "m/1/model.onnx"], "m", "m", "m", False),
        (["m/model.py"], "m", "m", "m", True),
        (["m/model.py"], "m/model.py", "m", "m", True),
        (["m/model.onnx", "m/config.pbtxt"], "m", "named", "m", True),
        (["m/config.pbtxt"], "m", "named", "m", True),
        (["2024/model.py", "2024/1/model.py"], "2024/1", "2024", "2024", False),
    ],
)
def test_what_a_path_means(tmp_path: Path, files: list[str], given: str, name: str, place: str, is_flat: bool) -> None:
    make(tmp_path, *files)
    assert find_run_model(tmp_path / given) == ModelDirectory(name, tmp_path / place, tmp_path, is_flat)


def test_the_directory_that_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make(tmp_path / "here", "model.py"))
    assert find_run_model(Path()).name == "here"


@pytest.mark.parametrize(
    ("files", "given", "texts"),
    [
        ([], "m", ["'m' is no directory", "version directory"]),
        (["m/notes.txt"], "m", ["'m' has no model in it; expected config.pbtxt, a version directory such as 1"]),
        (
            ["m/net.py"],
            "m/net.py",
            ["is no model file: expected config.pbtxt, model.graphdef,", " model.onnx,", "or the directory of one"],
        ),
        (["m/a/1/model.py", "m/b/config.pbtxt"], "m", ["repository of models (a, b)", "trioton run m/a"]),
    ],
)
def test_no_model_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], given: str, texts: list[str]
) -> None:
    """The text says what was expected, or what seems to be there."""
    monkeypatch.chdir(make(tmp_path, *files))
    with pytest.raises(UsageError) as raised:
        find_run_model(Path(given))
    for text in texts:
        assert text in str(raised.value)


def test_settings_of_a_person_at_work(tmp_path: Path) -> None:
    """Only this machine is listened to, the model may be loaded by hand, with --reload it need not load at first."""
    model = str(make(tmp_path / "m", "model.py"))
    settings = run_settings([model], {})
    assert (settings.http_address, settings.grpc_address) == ("127.0.0.1", "127.0.0.1")
    assert (settings.model_control_mode, settings.load_model) == ("explicit", ("m",))
    assert (settings.exit_on_error, settings.reload) == (True, False)
    assert [
        place.path for place in settings.repositories(settings.stores({})) if isinstance(place, ModelDirectory)
    ] == [tmp_path / "m"]

    environment = {"TRIOTON_HTTP_PORT": "1", "TRIOTON_MODEL_REPOSITORY": "/elsewhere"}
    words = ["--reload", "--grpc-port", "2", model, "--backend-config=python,a=b", "--http-address=0.0.0.0"]
    settings = run_settings(words, environment)
    assert (settings.exit_on_error, settings.reload) == (False, True)
    assert (settings.http_address, settings.http_port, settings.grpc_port) == ("0.0.0.0", 1, 2)
    assert settings.backend_config == (BackendSetting("python", "a", "b"),)
    assert len(settings.repositories(settings.stores({}))) == 1
    assert run_settings([model, "--reload", "--exit-on-error=true"], {}).exit_on_error
    debugged = run_settings([model, "--debug=debugpy:5700", "--backend-config=python,a=b"], {}).backend_config
    assert debugged == (BackendSetting("python", "a", "b"), BackendSetting("python", "debugger", "debugpy:5700"))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "takes one model directory, got 0: none"),
        (["a", "b"], "got 2: a b"),
        (["a", "--model-repository=b"], 'Bad option: "--model-repository"'),
        (["nowhere"], "'nowhere' is no directory"),
        (["a", "--debug=gdb"], "--debug: expected pdb, debugpy or debugpy:<port>, got 'gdb'"),
    ],
)
def test_usage_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", *words]) == 1
    error = capsys.readouterr().err
    assert text in error
    assert error.startswith("usage: trioton run <model directory>")


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help=all"]) == 0
    shown = capsys.readouterr().out
    assert "--reload" in shown
    assert "--http-port" in shown
    assert "--load-model" not in shown
