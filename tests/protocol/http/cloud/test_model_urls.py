"""The folders that SageMaker asks to have loaded: which are allowed, and which model of them is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.core import ModelRepository
from protocol.errors import InvalidArgument
from protocol.http.cloud.model_urls import DEFAULT_ROOT, checked_url, repository_of, served_name


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/opt/ml/models/h_1.a/model", "/opt/ml/models/h_1.a/model"),
        ("/opt/ml/models/h/model/", "/opt/ml/models/h/model"),
        ("/opt/ml//models/x/../h/model/sub", "/opt/ml/models/h/model/sub"),
    ],
)
def test_folders_of_the_contract(url: str, path: str) -> None:
    assert checked_url(url, DEFAULT_ROOT) == Path(path)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "model",
        "/opt/ml/models",
        "/opt/ml/models/h",
        "/opt/ml/models/h/other",
        "/opt/ml/models/h/model/a/b",
        "/opt/ml/models/h/model/../../../../etc",
        "/opt/ml/models/h-1/model",
        "/opt/ml/models/h/model\n",
        "/opt/ml/models/h/models",
        "s3://bucket/model",
    ],
)
def test_no_others(url: str) -> None:
    with pytest.raises(InvalidArgument, match=r"expected a path of the form /opt/ml/models/<hash>/model\[/<subdir>\]"):
        checked_url(url, DEFAULT_ROOT)


@pytest.mark.parametrize("url", ["/dev/shm/model", "/proc/1/root", "/sys", "/opt/../dev/null"])
def test_none_of_the_systems(url: str) -> None:
    with pytest.raises(InvalidArgument, match="paths under /dev, /proc and /sys are not allowed"):
        checked_url(url, DEFAULT_ROOT)


def test_the_folder_is_the_model(tmp_path: Path) -> None:
    url = tmp_path / "h" / "model"
    (url / "1").mkdir(parents=True)
    expected = ModelRepository(str(tmp_path / "h"), {"model": "served"})
    assert repository_of(url, "served") == expected, "it has nothing but versions"
    (url / "labels").mkdir()
    (url / "config.pbtxt").touch()
    assert repository_of(url, "served") == expected, "it has a configuration"


def test_the_folder_has_one_model(tmp_path: Path) -> None:
    (tmp_path / "resnet" / "1").mkdir(parents=True)
    (tmp_path / ".cache").mkdir()
    (tmp_path / "README.md").touch()
    assert repository_of(tmp_path, "served") == ModelRepository(str(tmp_path), {"resnet": "served"})


@pytest.mark.parametrize("config", ['platform: "ensemble"', "max_batch_size: 1 ensemble_scheduling { step [] }"])
def test_of_several_models_the_ensemble_is_meant(tmp_path: Path, config: str) -> None:
    for name in ("before", "both", "without"):
        (tmp_path / name).mkdir()
    (tmp_path / "before" / "config.pbtxt").write_text('backend: "python"\n# platform: "ensemble"\n')
    (tmp_path / "both" / "config.pbtxt").write_text(config)
    assert repository_of(tmp_path, "served") == ModelRepository(str(tmp_path), {"both": "served"})


def test_folders_without_one_model(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no model is found in"):
        repository_of(tmp_path, "served")
    with pytest.raises(InvalidArgument, match="No such file or directory"):
        repository_of(tmp_path / "nowhere", "served")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(InvalidArgument, match="has the models a, b, of which exactly one has to be an ensemble, got 0"):
        repository_of(tmp_path, "served")


def test_a_path_in_a_bucket_is_a_name() -> None:
    assert served_name("folder/model-a.tar.gz") == "folder_model-a.tar.gz"
