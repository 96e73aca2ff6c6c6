"""Checks of the directory layout of a repository; part of `trioton doctor`."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from protocol.errors import ServerError
from repository.backend_fields import MODEL_FORMS
from repository.layout import CONFIG_FILE, ModelDirectory, select_versions, version_directories
from repository.model_config import ModelConfig
from repository.model_folders import is_bare_model
from trioton.tools.findings import Finding, Level

# Where `trioton repo add` works, in the repository; removed at its end unless it was killed.
STAGING_PREFIX = ".trioton-add-"
# What was replaced, in there, for the moment between two renames, where one cannot do both.
REPLACED = "replaced"

_NUMBER = re.compile(r"[0-9]+")
_CAPABILITY = re.compile(r"[0-9]+\.[0-9]+")
_MODEL_FILES = frozenset(form.filename for form in MODEL_FORMS)
_SUFFIXES = frozenset(Path(name).suffix for name in _MODEL_FILES)
# What a directory that is meant to be a version may be called.
_LIKE_VERSION = re.compile(r"v?(ersion)?[-_. ]?0*([0-9]+)(\.0+)*", re.IGNORECASE)
_LIKE_CONFIG = re.compile(r"(config|model)\.?(pbtxt?|pb\.?txt|txt|json|prototxt)(\.txt)?", re.IGNORECASE)


def repository_findings(path: Path) -> list[Finding]:
    """What is wrong with a repository as such."""
    return place_findings(path) or _repository_findings(path)


def place_findings(path: Path) -> list[Finding]:
    """Whether it is no repository at all."""
    if not os.path.exists(path):  # unlike the methods of Path these never raise
        return [Finding(f"repository '{path}' does not exist", "make it, or correct the path")]
    if not os.path.isdir(path):
        return [Finding(f"repository '{path}' is no directory", "give the directory that holds those of the models")]
    if os.path.isfile(path / CONFIG_FILE) or any(os.path.exists(path / "1" / name) for name in _MODEL_FILES):
        return [
            Finding(
                f"'{path}' is the directory of one model, not a repository",
                f"give the directory around it: {path.absolute().parent}",
            )
        ]
    return []


def _repository_findings(path: Path) -> list[Finding]:
    findings = [
        Finding(
            f"'{name}' lies in the repository itself, where no model is looked for",
            f"put it into a model's version directory: trioton repo add {path} {path / name}",
            Level.WARNING,
        )
        for name in sorted(os.listdir(path))
        if Path(name).suffix in _SUFFIXES and (path / name).is_file()
    ]
    findings += [
        Finding(f"'{name}' is left of a trioton repo add that was killed", _mend_of_staging(path / name), Level.WARNING)
        for name in sorted(os.listdir(path))
        if name.startswith(STAGING_PREFIX)
    ]
    if not any(each.is_dir() and not each.name.startswith(".") for each in path.iterdir()):
        findings.append(
            Finding(f"repository '{path}' holds no models", "each model is a directory in it", Level.WARNING)
        )
    return findings


def _mend_of_staging(path: Path) -> str:
    if (path / REPLACED).exists():
        return f"it holds a model or version that was being replaced: move {path / REPLACED} back, then remove {path}"
    return f"remove it: {path}"


def directory_findings(directory: ModelDirectory) -> Iterator[Finding]:
    """What can be said of a model's directory without its configuration."""
    names = sorted(os.listdir(directory.path))
    if CONFIG_FILE not in names:
        for name in names:
            if _LIKE_CONFIG.fullmatch(name) and not is_bare_model(directory.path):
                yield Finding(f"'{name}' is not read", f"rename it to {CONFIG_FILE}", Level.WARNING)
    if directory.is_flat:
        return
    for name in names:
        if (directory.path / name).is_dir() and not _is_version(name):
            holds_model = any((directory.path / name / file).exists() for file in _MODEL_FILES)
            like = _LIKE_VERSION.fullmatch(name)
            if holds_model or like:
                mend = f"rename it to {int(like[2])}" if like else "versions are called 1, 2, 3 …"
                yield Finding(f"directory '{name}' is skipped, its name is no version number", mend, Level.WARNING)
    if not any(_is_version(name) and (directory.path / name).is_dir() for name in names):
        files = [name for name in names if Path(name).suffix in _SUFFIXES]
        mend = f"make the directory '1' in it, with the model file{'s' if len(files) > 1 else ''}" + (
            f" '{files[0]}' of '{directory.name}' in it" if len(files) == 1 else ""
        )
        yield Finding("there is no version directory", mend)


def file_findings(directory: ModelDirectory, config: ModelConfig) -> Iterator[Finding]:
    """Whether each version that would be served has its model file, and which names of files nothing takes."""
    yield from _capability_findings(config)
    if config.is_ensemble or not config.default_model_filename:
        return
    try:
        available = version_directories(directory)
        selected = select_versions(config.version_policy, available, model=directory.name)
    except ServerError:
        return  # told elsewhere
    if config.version_policy is not None and config.version_policy.specific is not None:
        for version in sorted(set(config.version_policy.specific.versions) - set(available)):
            yield Finding(
                f"version {version} is in version_policy, but there is no directory '{version}'",
                "make it, or take it out of the policy",
                Level.WARNING,
            )
    for version in selected:
        place = directory.path if directory.is_flat else directory.path / str(version)
        for field, name in (
            ("default_model_filename", config.default_model_filename),
            *((f"cc_model_filenames['{key}']", name) for key, name in config.cc_model_filenames.items() if name),
        ):
            if not (place / name).exists():
                there = sorted(other for other in os.listdir(place) if not other.startswith((".", "__")))
                is_default = field == "default_model_filename"
                yield Finding(
                    f"version {version} has no file '{name}' ({field})",
                    _file_mend(name, there) if is_default else "put it there for GPUs of this capability",
                    Level.ERROR if is_default else Level.WARNING,
                )


def _capability_findings(config: ModelConfig) -> Iterator[Finding]:
    """Entries of `cc_model_filenames` that no GPU can have; `cc_model_filenames: {}` is one with nothing in it."""
    for capability, filename in config.cc_model_filenames.items():
        if not _CAPABILITY.fullmatch(capability) or not filename:
            yield Finding(
                f"'cc_model_filenames' has the key '{capability}' with the file '{filename}', which no GPU takes",
                "remove it, or write a CUDA compute capability as NVIDIA does (7.5) and a file in the version folder",
                Level.WARNING,
            )


def _file_mend(name: str, there: Sequence[str]) -> str:
    alike = [other for other in there if Path(other).suffix == Path(name).suffix and Path(name).suffix]
    nearest = alike if len(alike) == 1 else difflib.get_close_matches(name, there, n=1)
    if not nearest:
        return "put the model file there" + (f"; there is: {', '.join(there[:5])}" if there else "")
    return f"rename '{nearest[0]}' to '{name}', or write `default_model_filename: \"{nearest[0]}\"` into {CONFIG_FILE}"


def _is_version(name: str) -> bool:
    return bool(_NUMBER.fullmatch(name)) and name == str(int(name))
