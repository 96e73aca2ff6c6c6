"""CUDA's libraries are loaded once, where a session needs them."""

from __future__ import annotations

import logging

import onnxruntime
import pytest

from backends.onnxruntime import cuda_libraries
from backends.onnxruntime.cuda_libraries import load_libraries
from backends.onnxruntime.providers import CPU, CUDA, OPENVINO, TENSORRT, Provider


def test_once_and_only_where_they_are_needed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """What onnxruntime prints of it goes to the log."""
    calls = []

    def preload() -> None:
        calls.append(1)
        print("Failed to load libcudnn.so.9: no such file")

    monkeypatch.setattr(onnxruntime, "preload_dlls", preload)
    monkeypatch.setattr(cuda_libraries, "_loaded", [])
    caplog.set_level(logging.INFO, "trioton.backends.onnxruntime")
    load_libraries([(OPENVINO, {}), (CPU, {})])
    assert not calls
    wanted: list[list[Provider]] = [[(CUDA, {"device_id": "0"}), (CPU, {})], [(TENSORRT, {}), (CPU, {})]]
    for providers in wanted:
        load_libraries(providers)
    assert len(calls) == 1
    assert "Failed to load libcudnn.so.9" in caplog.text
    assert capsys.readouterr().out == ""


def test_the_library_can_be_asked_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_libraries, "_loaded", [])
    load_libraries([(CUDA, {})])
    assert len(cuda_libraries._loaded) == 1
