"""Part of the build: writes the commit of the checkout into the package, where `trioton/version.py` reads it."""

import importlib.util
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACE = "trioton/COMMIT"


class CommitHook(BuildHookInterface):
    def initialize(self, version, build_data):
        """An editable installation has its checkout; what is built from an sdist has the sdist's file."""
        root = Path(self.root)
        if version == "editable" or (root / PLACE).exists():
            return
        spec = importlib.util.spec_from_file_location("version", root / "trioton" / "version.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        commit = module.checkout_commit(root)
        if commit != module.UNKNOWN:
            self._made = tempfile.TemporaryDirectory()
            path = Path(self._made.name) / "COMMIT"
            path.write_text(f"{commit}\n", encoding="utf-8")
            build_data["force_include"][str(path)] = PLACE

    def finalize(self, version, build_data, artifact_path):
        if hasattr(self, "_made"):
            self._made.cleanup()
