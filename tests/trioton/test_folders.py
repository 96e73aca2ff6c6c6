"""Folders of language models on the command line: what `trioton serve` makes of a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from trioton.cli import settings_from
from trioton.flags.fields import UsageError
from trioton.folders import folder_name, folder_of_word

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("{}")
    return folder


def tiny(folder: Path) -> Path:
    return write(folder, "config.json", "model.safetensors", "tokenizer.json")


def test_a_folder_is_a_model_beside_repositories(tmp_path: Path) -> None:
    folder, repository = tiny(tmp_path / "Tiny Llama-1.1B"), write(tmp_path / "models")
    settings = settings_from([str(folder), str(repository), "--engine=scripted"], {})
    [model] = settings.folders
    assert (model.name, model.path, model.is_flat) == ("Tiny-Llama-1.1B", folder, True)
    assert settings.model_repository == (repository,)
    assert settings.engine == "scripted"


def test_its_name_may_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny(tmp_path / "a")
    monkeypatch.chdir(folder)
    assert [model.name for model in settings_from([".", "--served-model-name=b"], {}).folders] == ["b"]
    assert [model.name for model in settings_from(["."], {}).folders] == ["a"]
    with pytest.raises(UsageError, match="--served-model-name is for one folder of a language model, got 0"):
        settings_from(["--model-repository=m", "--served-model-name=b"], {})
    with pytest.raises(UsageError, match="--served-model-name: invalid model name 'a/b'"):
        settings_from([".", "--served-model-name=a/b"], {})


def test_it_is_loaded_where_models_are_loaded_by_name(tmp_path: Path) -> None:
    folder = str(tiny(tmp_path / "a"))
    assert settings_from([folder, "--model-control-mode=explicit", "--load-model=b"], {}).load_model == ("b", "a")
    assert settings_from([folder, "--model-control-mode=explicit", "--load-model=*"], {}).load_model == ("*",)
    assert settings_from([folder], {}).load_model == ()


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("/m/Llama-3.2-1B-Instruct", "Llama-3.2-1B-Instruct"),
        ("/m/.hidden", "hidden"),
        ("/m/größe (neu)", "gr-e-neu"),
        (f"/hub/models--org--tiny.v1/snapshots/{COMMIT}", "tiny.v1"),
        ("/", ""),
    ],
)
def test_names_of_folders(folder: str, name: str) -> None:
    assert folder_name(Path(folder)) == name


def test_what_no_engine_reads_is_told(tmp_path: Path) -> None:
    write(tmp_path / "g", "config.json", "tiny.gguf")
    for word in (tmp_path / "g", tmp_path / "g" / "tiny.gguf"):
        with pytest.raises(UsageError, match=r"format of llama.cpp, which no engine here reads"):
            folder_of_word(str(word))
    without = write(tmp_path / "w", "config.json", "model.safetensors")
    with pytest.raises(UsageError, match=r"has no tokenizer.json: in Python, transformers.AutoTokenizer"):
        folder_of_word(str(without))


def test_an_id_is_looked_up_in_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is laid out as the hub's library does it."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder = tiny(tmp_path / "models--org--tiny" / "snapshots" / COMMIT)
    (tmp_path / "models--org--tiny" / "refs").mkdir()
    (tmp_path / "models--org--tiny" / "refs" / "main").write_text(COMMIT)
    assert folder_of_word("org/tiny") == folder
    assert [model.name for model in settings_from(["org/tiny"], {}).folders] == ["tiny"]
    with pytest.raises(UsageError, match=r"'org/other' is neither a folder nor a model .*; hf download org/other"):
        settings_from(["org/other"], {})


def test_other_words_stay_what_they_were(tmp_path: Path) -> None:
    assert folder_of_word(str(write(tmp_path / "models"))) is None
    with pytest.raises(UsageError, match="does not exist"):
        settings_from([str(tmp_path / "absent")], {})
