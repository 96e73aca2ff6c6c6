"""The packages of the extra `llm` are imported where a model needs them, and not by the server."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORT = """
import sys
import protocol.text.model, protocol.text.output_parser, protocol.text.tokenizer, protocol.text.chat_template
import repository.text_files
print(sorted({name.partition(".")[0] for name in sys.modules} & {"tokenizers", "jinja2"}))
"""


@pytest.mark.slow
def test_imports_need_no_package() -> None:
    found = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
