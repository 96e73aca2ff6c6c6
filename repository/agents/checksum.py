"""The agent `checksum`: refuses a load if the model's files differ from the digests in its configuration.

    model_repository_agents {
      agents [ { name: "checksum" parameters [ { key: "MD5:1/model.onnx" value: "2f3c…" } ] } ]
    }

Source: Triton's checksum agent, which knows MD5 alone.
"""

from __future__ import annotations

import hashlib
import posixpath
from pathlib import Path

from protocol.errors import InvalidArgument, Unsupported
from repository.agents.interface import AgentModel, RepositoryAgent

ALGORITHMS = ("MD5", "SHA256", "SHA512")


class ChecksumAgent(RepositoryAgent):
    """Parameters: `<algorithm>:<path below the model's folder>` to the digest in hexadecimal digits. Other files are
    not looked at."""

    def load(self, model: AgentModel) -> None:
        """Raises ServerError for the first parameter that does not hold."""
        for key, expected in sorted(self.parameters.items()):  # so that the same fault is told each time
            algorithm, colon, path = key.partition(":")
            if not colon or not path:
                raise InvalidArgument(f"failed to parse key: {key}")
            if algorithm.upper() not in ALGORITHMS:
                raise Unsupported(
                    f"Unsupported checksum algorithm: {algorithm}; those known are {', '.join(ALGORITHMS)}"
                )
            found = _digest(algorithm.lower(), model.directory, path)
            if found != expected.strip().lower():
                raise InvalidArgument(
                    f"Mismatched {algorithm.upper()} hash for file {path}, expect: {expected}, got: {found}"
                )


def _digest(algorithm: str, directory: Path, path: str) -> str:
    normal = posixpath.normpath(path)
    if posixpath.isabs(normal) or normal.split("/")[0] == "..":  # else a load call could ask for any file's digest
        raise InvalidArgument(f"checksum of file {path}: the file must be in the model's folder")
    try:
        with (directory / normal).open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise InvalidArgument(f"failed to open text file for read {path}: {error.strerror}") from None
