"""Make what comes from the `.proto` files: `python -m tests.generate`; `--check` only says what is out of date.

Two things are made: `protocol/proto/descriptors.binpb`, from which Google's protobuf classes are built at run time,
and `protocol/grpc/generated/`, betterproto2's messages and service bases. Files in folders have only the former:
their messages carry bulk, or any message. The compilers come with the extra `check`.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "protocol" / "proto"
DESCRIPTORS = PROTO / "descriptors.binpb"
GENERATED = ROOT / "protocol" / "grpc" / "generated"

PACKAGE_DOCSTRING = '"""Made by `python -m tests.generate` from `protocol/proto/*.proto`; do not edit."""\n'
_BASE, _IMPORT = "(betterproto2.Message)", "import betterproto2\n"
_OUR_IMPORT = "from protocol.grpc.plain_message import PlainMessage\n"
HINT = "Run `make generate` (or `python -m tests.generate`) and commit what it changes."


class GenerationError(Exception):
    """The compiler failed; the message says what it said."""


def generate(descriptors: Path, code: Path) -> None:
    """Compile all `.proto` files into the file `descriptors`, and those that are in no folder of their own into the
    folder `code`, which must exist."""
    scripts = Path(sys.executable).parent
    every = (path.relative_to(PROTO).as_posix() for path in sorted(PROTO.rglob("*.proto")))
    _compile("--include_imports", f"--descriptor_set_out={descriptors}", *every)
    _compile(
        f"--plugin=protoc-gen-python_betterproto2={scripts / 'protoc-gen-python_betterproto2'}",
        f"--python_betterproto2_out={code}",
        "--python_betterproto2_opt=client_generation=none,server_generation=async",
        *(file.name for file in sorted(PROTO.glob("*.proto"))),
    )
    (code / "__init__.py").write_text(PACKAGE_DOCSTRING)
    for path in code.rglob("*.py"):
        path.write_text(_with_our_base(path.read_text()))


def _with_our_base(text: str) -> str:
    """With `PlainMessage` as the base of all messages."""
    if _BASE not in text:
        return text
    head, imported, rest = text.partition(_IMPORT)
    if not imported:
        raise GenerationError(f"the plugin's code has messages, but no line {_IMPORT!r}")
    return f"{head}{imported}\n{_OUR_IMPORT}{rest.replace(_BASE, '(PlainMessage)')}"


def _compile(*arguments: str) -> None:
    scripts = Path(sys.executable).parent  # the plugin runs `ruff`; both are installed beside the interpreter
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTO}", *arguments]
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}"}
    # In the root, where the plugin's `ruff` finds the project's line length.
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        hint = "the compilers are missing: pip install '.[check]'" if "No module named" in result.stderr else ""
        raise GenerationError("\n".join(filter(None, (result.stderr.strip(), hint))))


def content(path: Path) -> object:
    """What a generated file means: equal for files that differ in layout or in the compiler's patch version only."""
    if path.suffix != ".py":
        return path.read_bytes()
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if not _is_compiler_version(node)]
    return ast.dump(tree)


def _is_compiler_version(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "_COMPILER_VERSION"
    )


def files_below(folder: Path) -> dict[str, Path]:
    """Relative name to path of every file, but for the interpreter's own caches."""
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def differences(made_descriptors: Path, made_code: Path) -> list[str]:
    """One sentence for each file of the project that is not what the `.proto` files say."""
    pairs = [(DESCRIPTORS, made_descriptors)]
    made, present = files_below(made_code), files_below(GENERATED)
    pairs += [(GENERATED / name, made_code / name) for name in sorted(made.keys() | present.keys())]
    found = []
    for ours, fresh in pairs:
        name = ours.relative_to(ROOT)
        if not ours.exists():
            found.append(f"{name} is missing")
        elif not fresh.exists():
            found.append(f"{name} comes from no .proto file any more")
        elif content(ours) != content(fresh):
            found.append(f"{name} is out of date")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if anything is out of date")
    check: bool = parser.parse_args(arguments).check
    with tempfile.TemporaryDirectory() as folder:
        descriptors, code = Path(folder, "descriptors.binpb"), Path(folder, "generated")
        code.mkdir()
        try:
            generate(descriptors, code)
        except GenerationError as error:
            print(f"The .proto files could not be compiled:\n{error}", file=sys.stderr)
            return 1
        if check:
            found = differences(descriptors, code)
            if found:
                print("Generated code is not what the .proto files say:", file=sys.stderr)
                print("\n".join(f"  {line}" for line in [*found, HINT]), file=sys.stderr)
            return 1 if found else 0
        shutil.copyfile(descriptors, DESCRIPTORS)
        shutil.rmtree(GENERATED, ignore_errors=True)
        shutil.copytree(code, GENERATED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
