"""Other Pythons of this machine, for models that bring their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

# Interpreters that have numpy, as paths with colons between them; for machines whose `python3.N` have none.
VARIABLE = "TRIOTON_TEST_PYTHONS"
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


@cache
def python_with_numpy(version: str) -> str:
    """The interpreter of that version; skips the test where there is none with numpy."""
    named = [shutil.which(f"python{version}"), *os.environ.get(VARIABLE, "").split(os.pathsep)]
    for candidate in filter(None, named):
        code = "import sys, numpy; print('%d.%d' % sys.version_info[:2])"
        found = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False, timeout=60)
        if found.returncode == 0 and found.stdout.strip() == version:
            return candidate
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        return sys.executable
    pytest.skip(f"no python{version} with numpy here; {VARIABLE} may name one")


def environment_of(python: str, folder: Path) -> Path:
    """A virtual environment of that interpreter, which has its numpy."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    where = subprocess.run(
        [python, "-c", "import numpy; print(numpy.__file__)"], check=True, capture_output=True, text=True, timeout=60
    )
    [site_packages] = folder.glob("lib/python*/site-packages")
    (site_packages / "numpy.pth").write_text(str(Path(where.stdout.strip()).parents[1]))
    return folder
