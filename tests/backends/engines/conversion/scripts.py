"""Scripts that stand in for an interpreter with optimum-intel, whose packages take a gigabyte: `converter_script`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.backends.engines.models import TEXT_FILES, TINY

# What it does for `-m`, where the last argument is the folder to write; `calls` has a line for each.
WRITES = "shutil.copytree(TINY, target)"
FAILS = "sys.exit('no such architecture')"
WRITES_NOTHING = "target.mkdir()"
IS_FULL = "sys.exit('OSError: [Errno 28] No space left on device')"
HANGS = """
target.mkdir()
(target / 'openvino_model.xml').write_text('a half')
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
(here / 'begun').touch()
time.sleep(600)
"""

_SCRIPT = """#!{python}
import json, pathlib, shutil, subprocess, sys, time
here, TINY = pathlib.Path(__file__).parent, {tiny!r}
if sys.argv[1] == "-c":
    print(json.dumps({versions!r}))
    sys.exit()
target = pathlib.Path(sys.argv[-1])
with open(here / "calls", "a") as calls:
    print(json.dumps(sys.argv[1:]), file=calls)
print("exporting", flush=True)
{deed}
"""


def converter_script(folder: Path, deed: str, *, version: str | None = "2.2.0", name: str = "python") -> Path:
    """An executable in `folder`. `version` is that of its optimum-intel; None for one that has none."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    versions = {"torch": "2.13.0"} if version is None else {"optimum-intel": version}
    path.write_text(_SCRIPT.format(python=sys.executable, tiny=str(TINY), versions=versions, deed=deed))
    path.chmod(0o700)
    return path


def hugging_face_folder(folder: Path, weights: bytes = b"weights") -> Path:
    """The tiny Llama's text files beside safetensors, whose content nobody reads."""
    folder.mkdir(parents=True)
    for name in TEXT_FILES:
        shutil.copy(TINY / name, folder / name)
    (folder / "model.safetensors").write_bytes(weights)
    return folder
