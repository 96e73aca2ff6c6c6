"""Where data comes from, by the word that names it: random, zero, warm-up samples, files and captures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trioton.perf.caller import DataError, ModelDescription
from trioton.perf.data.array_files import read_folder, read_npz
from trioton.perf.data.captured import ENDINGS, read_captured
from trioton.perf.data.dataset import MAX_BYTES, Dataset, Step
from trioton.perf.data.generated import Generated, shapes_by_name
from trioton.perf.data.input_json import InputJson
from trioton.perf.data.inputs import GivenShape, ModelSlots, slots_of
from trioton.perf.data.payloads import Form
from trioton.perf.data.prompts import Prompts
from trioton.perf.data.warmup import read_warmup

RANDOM, ZERO, WARMUP = "random", "zero", "warmup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The words given, and how data is made where none is.

    Attributes:
        words: `random`, `zero`, `warmup`, `warmup:<model directory>`, or paths: JSON files of perf_analyzer's form (any
            number), a `.npz` file, a folder of files, or a capture (`.jsonl`, `.parquet`, a folder of them).
        shapes: sizes of inputs with variable dims.
    """

    words: tuple[str, ...] = (RANDOM,)
    shapes: tuple[GivenShape, ...] = ()
    generated: Generated = Generated()  # noqa: RUF009 (frozen)
    prompts: Prompts = Prompts()  # noqa: RUF009 (frozen)

    def load(self, model: ModelDescription, form: Form = Form.TENSORS) -> Dataset:
        """The data, with its streams. Blocks.

        Raises:
            DataError: it cannot be read, or does not fit the model.
        """
        dataset = self._load(model, form)
        if dataset.byte_size > MAX_BYTES and not dataset.is_generated:
            raise DataError(
                f"{', '.join(self.words)}: holds {dataset.byte_size} bytes of tensors, at most {MAX_BYTES} are kept in "
                "memory: give fewer rows"
            )
        return dataset

    def _load(self, model: ModelDescription, form: Form) -> Dataset:
        word = self.words[0]
        if word in (RANDOM, ZERO) and form is Form.OPENAI:
            return self.prompts.dataset(model.name)
        slots = slots_of(model)
        by_name = shapes_by_name(slots, self.shapes) if slots.inputs else {}
        if word in (RANDOM, ZERO):
            self._expect_one()
            return replace(self.generated, is_zero=word == ZERO).dataset(slots, self.shapes)
        if word == WARMUP or word.startswith(f"{WARMUP}:"):
            self._expect_one()
            directory = word.partition(":")[2]
            return read_warmup(model, Path(directory) if directory else None)
        return self._files([Path(each) for each in self.words], slots, fixed_shapes(by_name))

    def _files(self, paths: Sequence[Path], slots: ModelSlots, shapes: Mapping[str, tuple[int, ...]]) -> Dataset:
        first = paths[0]
        if not first.exists():
            raise DataError(f"{first}: there is no such file or folder; data is random, zero, warmup or a path")
        if first.is_dir() or first.suffix in (*ENDINGS, ".npz"):
            self._expect_one()
        if first.suffix == ".npz":
            return read_npz(first, slots)
        if first.suffix in ENDINGS or (first.is_dir() and any(each.suffix in ENDINGS for each in first.iterdir())):
            return read_captured(first, slots)
        if first.is_dir():
            return read_folder(first, slots, shapes)
        return InputJson(slots, shapes).read(paths)

    def _expect_one(self) -> None:
        if len(self.words) > 1:
            raise DataError(f"only JSON files can be joined, got {', '.join(self.words)}")


def fixed_shapes(by_name: Mapping[str, GivenShape]) -> dict[str, tuple[int, ...]]:
    """The shapes for data from files. Raises DataError: one is not a single shape."""
    found = {}
    for name, shape in by_name.items():
        if shape.fixed is None:
            raise DataError(f"--shape {shape}: sizes from a range are for data that is made; files have one size")
        found[name] = shape.fixed
    return found


def arrival_times(dataset: Dataset) -> list[float]:
    """When the steps are to be sent, in seconds from the start, in order.

    Raises:
        DataError: some do not say.
    """
    steps: list[Step] = list(dataset.steps)
    times = [step.at for step in steps if step.at is not None]
    if len(times) != len(steps):
        raise DataError(f"{len(steps) - len(times)} of {len(steps)} entries of the data have no time ('timestamp')")
    return sorted(times)


def load_dataset(sources: Sources, model: ModelDescription, form: Form) -> tuple[ModelSlots, Dataset]:
    """The data and what it is for. Blocks. Raises DataError."""
    dataset = sources.load(model, form)
    slots = slots_of(model) if form is not Form.OPENAI else ModelSlots(model.name, (), (), is_batching=False)
    return slots, dataset
