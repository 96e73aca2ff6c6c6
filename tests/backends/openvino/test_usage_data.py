"""The library sends data of its use by default, at its import: not from this server."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("openvino", reason="needs openvino: pip install 'trioton[openvino]'")

LOADED = "import sys\nassert 'openvino' in sys.modules\nprint(sys.modules.get('openvino_telemetry'))\n"


@pytest.mark.parametrize("module", ["backends.openvino", "backends.engines.worker.trioton_engine.openvino_genai"])
def test_none_is_sent(module: str) -> None:
    if module.endswith("genai"):
        pytest.importorskip("openvino_genai", reason="needs openvino-genai: pip install 'trioton[openvino-genai]'")
    command = [sys.executable, "-c", f"import {module}\n{LOADED}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (0, "None"), ended.stderr
