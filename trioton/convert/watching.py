"""Files that a conversion's result rests on: their digests when it began, and which have changed since."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trioton.convert.digests import digest
from trioton.convert.sources import Source
from trioton.tools.model_sources import belongs_to


class WatchedFiles:
    """Digests by the path. Every method reads the files, and raises OSError where one cannot be read."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._digests: dict[Path, str] = {}
        self.add(paths)

    def add(self, paths: Iterable[Path]) -> None:
        """Those that are not known yet, as they are now."""
        for path in paths:
            if path not in self._digests:
                self._digests[path] = digest(path)

    def digests(self, paths: Iterable[Path]) -> dict[str, str]:
        return {str(path): self._digests[path] for path in paths}

    def changed(self) -> list[Path]:
        """Those that are other ones now, or gone."""
        return [path for path, before in self._digests.items() if not path.exists() or digest(path) != before]


def files_of(source: Source) -> list[Path]:
    """The source's file or folder first, then weights that lie beside it."""
    path = Path(source.path)
    if path.is_dir():
        return [path]
    return [path, *(beside for beside in sorted(path.parent.iterdir()) if belongs_to(beside, path))]
