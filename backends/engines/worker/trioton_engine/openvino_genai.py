"""OpenVINO GenAI as an engine: continuous batching with a paged cache, on CPUs and Intel's GPUs.

Its folder is what `optimum-cli export openvino` writes. Options, beside the pipeline's own `SchedulerConfig` fields:
`max_loras` (adapters that are loaded at a time, 4), `structure_seconds` (what compiling a structure may take, 5), and
properties of OpenVINO by their names in capitals.

What is to be known of the library, beside what `openvino_pipeline` says: all calls come from one thread; an exception
of `step` leaves the pipeline broken for good, so nothing that may raise there gets in (`structure_judge`); adapters in
a generation's configuration have no effect, so each adapter has a pipeline of its own; the seed is 0 unless one is
given; and with prefixes kept, a few generations in a thousand were wrong where the cache was short of room, so they are
not unless that is asked for.

A folder with an encoder of pictures makes a pipeline that sees: it takes texts in place of token ids, and puts the
token that begins a text in front of them itself.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import openvino_genai as genai

from .engine import Adapter, Engine, EngineInfo, EngineModel, Event, Generation, Refused, Stats
from .openvino_pipeline import Pipeline
from .structure_judge import StructureJudge
from .structures import reason_of

_FEATURES = frozenset(
    {
        *("min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop_token_ids", "ignore_eos", "logprobs"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "adapter"),
        *(f"structure.{kind}" for kind in ("json", "json_object", "regex", "grammar", "choice")),
    }
)
# Of structures nothing can be judged without a model that takes token ids, and adapters were not tried.
_SEEING = frozenset(each for each in _FEATURES if each != "adapter" and not each.startswith("structure.")) | {"images"}
_SCHEDULER_NUMBERS = ("cache_size", "num_kv_blocks", "max_num_batched_tokens", "max_num_seqs")
_SCHEDULER_FLAGS = ("dynamic_split_fuse", "enable_prefix_caching", "use_cache_eviction")
# GB of cache for each pipeline, where the options do not say.
_DEFAULT_CACHE = 1
_DEFAULT_ADAPTERS = 4
_DEFAULT_STRUCTURE_SECONDS = 5.0
# How long a generation whose adapter has no place lets others go first, whose adapters have one.
PATIENCE_SECONDS = 2.0
_MOST_KEPT = 1 << 29  # bytes of compiled structures
_BLOCK_TOKENS = {"CPU": 32, "GPU": 16}


class _Waiting(NamedTuple):
    """A generation, and since when it waits for a pipeline."""

    generation: Generation
    since: float


class OpenVinoGenAiEngine(Engine):
    """See above. The pipeline of an adapter is made with its first generation, and goes when another one needs its
    place; generations wait while none can. Those with adapters that are loaded go first meanwhile, since it is dear to
    exchange adapters, but not for long."""

    def __init__(self) -> None:
        self._pipelines: dict[str, Pipeline] = {}  # the least recently used first, but for the one without an adapter
        self._by_sequence: dict[int, Pipeline] = {}
        self._pending: deque[_Waiting] = deque()
        self._tokenizer: Any = None
        self._judge: StructureJudge | None = None
        self._judged: list[Generation] = []  # until it is known whether their structures can be compiled
        self._told = 0  # how many of them the server knows of
        self._ended: list[Event] = []
        self._adapters: dict[str, Adapter] = {}

    def load(self, model: EngineModel) -> EngineInfo:
        options = dict(model.options)
        self._folder = model.directory
        self._device = str(options.pop("device", "") or model.device or "CPU")
        self._most_adapters = int(str(options.pop("max_loras", _DEFAULT_ADAPTERS)))
        structure_seconds = float(str(options.pop("structure_seconds", _DEFAULT_STRUCTURE_SECONDS)))
        options.pop("enable_lora", None)  # the server has looked at it
        self._block_tokens = _BLOCK_TOKENS["GPU" if self._device.startswith("GPU") else "CPU"]
        self._scheduler = _scheduler_config(options)
        self._properties = {key: _property(options.pop(key)) for key in list(options) if key.isupper()}
        if options:
            raise ValueError(f"OpenVINO GenAI has no option '{min(options)}'")
        if self._device == "CPU" and self._has_one_thread:
            self._properties.setdefault("INFERENCE_PRECISION_HINT", "f32")
        self._sees = _sees(Path(self._folder))
        if not self._sees:
            self._tokenizer = genai.Tokenizer(self._folder)
            self._judge = StructureJudge(self._folder, self._tokenizer, structure_seconds)
        self._temperature = _default_temperature(Path(self._folder))
        base = self._pipelines[""] = self._make(None)
        self._adapters = {each.name: each for each in model.adapters}
        _check_stop(base)
        sequences = self._scheduler.max_num_seqs
        features = _SEEING if self._sees else _FEATURES
        return EngineInfo(features, most_logprobs=1, sequences=sequences, adapters=self._most_adapters)

    @property
    def _has_one_thread(self) -> bool:
        """With one, some processors' bf16 ends the process by SIGFPE (openvino 2026.4.1 on one that has AMX)."""
        return bool(self._properties.get("INFERENCE_NUM_THREADS", len(os.sched_getaffinity(0))) == 1)

    def _make(self, adapter: Adapter | None) -> Pipeline:
        properties = dict(self._properties)
        if adapter is not None:
            properties["adapters"] = _adapter_config(adapter)
        make, place = genai.ContinuousBatchingPipeline, (self._scheduler, self._device)
        if self._tokenizer is None:
            made = make(self._folder, *place, properties)
        else:
            made = make(self._folder, self._tokenizer, *place, **properties)
        return Pipeline(made, temperature=self._temperature, sees=self._sees)

    def submit(self, generation: Generation) -> None:
        structure = generation.sampling.structure
        if structure is not None:
            assert self._judge is not None, "who sees has no structures"
            verdict = self._judge.verdict(structure)
            if verdict is None:
                self._judge.ask(structure)
                self._judged.append(generation)
                return
            if verdict.error:
                raise Refused(verdict.error)
        self._begin(generation)

    def _begin(self, generation: Generation) -> None:
        if generation.adapter and generation.adapter not in self._adapters:
            raise Refused(f"there is no adapter '{generation.adapter}'")
        if generation.adapter or self._is_full:
            self._wait(generation)
            self._admit()
        else:
            self._start(self._pipelines[""], generation)

    def _start(self, pipeline: Pipeline, generation: Generation) -> None:
        pipeline.start(generation)
        self._by_sequence[generation.sequence] = pipeline

    def abort(self, sequence: int) -> None:
        pipeline = self._by_sequence.get(sequence)
        if pipeline is not None:
            pipeline.abort(sequence)
            return
        for generation in (*self._judged, *(each.generation for each in self._pending)):
            if generation.sequence == sequence:
                self._judged = [each for each in self._judged if each is not generation]
                self._pending = deque(each for each in self._pending if each.generation is not generation)
                self._ended.append(Event(sequence, finish="abort"))
                self._forget_structure(generation)

    def step(self, wake: int) -> Sequence[Event]:
        if self._judged and self._judge is not None:
            if not (self._by_sequence or self._pending or self._ended) and len(self._judged) == self._told:
                select.select([wake, self._judge.descriptor], [], [])
            self._hear(self._judge)
        self._told = len(self._judged)  # by the statistics after this step
        events, self._ended = self._ended, []
        for pipeline in tuple(self._pipelines.values()):
            if not pipeline.is_idle:
                for event in pipeline.step():
                    events.append(event)
                    if event.finish:
                        del self._by_sequence[event.sequence]
        if self._pending:
            self._admit()
        return events

    def stats(self) -> Stats:
        waiting, usage = 0, 0.0
        for pipeline in self._pipelines.values():
            waiting += pipeline.unscheduled
            usage = max(usage, pipeline.cache_usage)
        begun = len(self._by_sequence)
        waiting = min(max(waiting, 0), begun)
        return Stats(
            begun - waiting,
            waiting + len(self._pending) + len(self._judged),
            usage,
            self._scheduler.num_kv_blocks,
            self._block_tokens,
        )

    # Structures

    def _hear(self, judge: StructureJudge) -> None:
        """Begin what may begin, and end what may not."""
        for structure, verdict in judge.hear():
            waiting = [each for each in self._judged if each.sampling.structure == structure]
            self._judged = [each for each in self._judged if each.sampling.structure != structure]
            if not verdict.error:
                for generation in waiting:
                    self._wait(generation)
            for generation in waiting if verdict.error else ():
                self._fail(generation, verdict.error, is_refused=verdict.is_refused)
        self._admit()

    def _forget_structure(self, generation: Generation) -> None:
        structure = generation.sampling.structure
        if self._judge is None or structure is None:
            return
        if all(each.sampling.structure != structure for each in self._judged):
            self._judge.forget(structure)

    @property
    def _is_full(self) -> bool:
        """Of structures that were compiled, which the tokenizer keeps for good."""
        return self._judge is not None and self._judge.kept_bytes > _MOST_KEPT

    def _renew(self) -> None:
        """Another tokenizer, and so other pipelines."""
        assert self._judge is not None
        self._pipelines.clear()
        self._tokenizer = genai.Tokenizer(self._folder)
        self._judge.renew(self._tokenizer)
        self._pipelines[""] = self._make(None)

    # Adapters

    def _wait(self, generation: Generation) -> None:
        self._pending.append(_Waiting(generation, time.monotonic()))

    def _admit(self) -> None:
        """Start what waits, in the order in which it came, as far as there is a pipeline for it. Behind one that has
        waited for long no adapter gets another generation, so that one of them comes to its end and makes room."""
        if self._is_full:
            if self._by_sequence:
                return
            self._renew()
        waiting, self._pending = self._pending, deque()
        must_wait = False
        for each in waiting:
            if (must_wait and each.generation.adapter) or not self._started(each.generation):
                self._pending.append(each)
                must_wait = must_wait or time.monotonic() - each.since >= PATIENCE_SECONDS

    def _started(self, generation: Generation) -> bool:
        """False where it has to wait; one that fails has ended."""
        try:
            pipeline = self._pipeline_of(generation.adapter)
            if pipeline is not None:
                self._start(pipeline, generation)
        except Refused as error:
            self._fail(generation, f"{_place(generation)}{error}", is_refused=True)
        except Exception as error:
            self._fail(generation, f"{_place(generation)}{reason_of(error)}", is_refused=False)
        else:
            return pipeline is not None
        return True

    def _fail(self, generation: Generation, text: str, *, is_refused: bool) -> None:
        self._ended.append(Event(generation.sequence, finish="error", error=text, is_refused=is_refused))

    def _pipeline_of(self, name: str) -> Pipeline | None:
        """The adapter's pipeline; None while all places are busy."""
        found = self._pipelines.pop(name, None)
        if found is None:
            if name not in self._adapters:
                raise Refused(f"there is no adapter '{name}'")
            if len(self._pipelines) > self._most_adapters and not self._evict():
                return None
            found = self._make(self._adapters[name])
        self._pipelines[name] = found
        return found

    def _evict(self) -> bool:
        for name, pipeline in self._pipelines.items():
            if name and pipeline.is_idle:
                del self._pipelines[name]
                return True
        return False

    def add_adapter(self, adapter: Adapter) -> None:
        """Its pipeline is made at once if there is a place, since only that shows whether it fits the model."""
        _adapter_config(adapter)
        self._adapters[adapter.name] = adapter
        try:
            self._pipeline_of(adapter.name)
        except Exception as error:
            del self._adapters[adapter.name]
            raise Refused(f"it does not fit the model: {reason_of(error)}") from None

    def remove_adapter(self, name: str) -> None:
        if name not in self._adapters:
            raise Refused(f"there is no adapter '{name}'")
        pipeline = self._pipelines.get(name)
        if pipeline is not None and not pipeline.is_idle:
            raise Refused(f"the adapter '{name}' is in use")
        self._pipelines.pop(name, None)
        del self._adapters[name]

    def adapters(self) -> Sequence[Adapter]:
        return tuple(self._adapters.values())

    def close(self) -> None:
        for pipeline in self._pipelines.values():
            pipeline.cancel_all()
        self._pipelines.clear()
        if self._judge is not None:
            self._judge.close()


def _place(generation: Generation) -> str:
    return f"adapter '{generation.adapter}': " if generation.adapter else ""


def _sees(folder: Path) -> bool:
    """Whether the model has an encoder of pictures. Raises ValueError where the file is not there that says how."""
    if not (folder / "openvino_vision_embeddings_model.xml").is_file():
        return False
    if not (folder / "preprocessor_config.json").is_file():
        raise ValueError(
            "OpenVINO GenAI needs preprocessor_config.json, which newer exports leave out: it is the member "
            "image_processor of processor_config.json"
        )
    return True


def _scheduler_config(options: dict[str, Any]) -> Any:
    """Takes its fields out of the options."""
    config = genai.SchedulerConfig()
    config.cache_size, config.enable_prefix_caching = _DEFAULT_CACHE, False
    if "num_kv_blocks" in options:
        config.cache_size = 0
    for name in _SCHEDULER_NUMBERS:
        if name in options:
            setattr(config, name, int(str(options.pop(name))))
    for name in _SCHEDULER_FLAGS:
        if name in options:
            setattr(config, name, str(options.pop(name)).lower() in ("true", "1"))
    return config


def _property(value: Any) -> Any:
    text = str(value)
    return int(text) if text.lstrip("-").isdigit() else value


def _default_temperature(folder: Path) -> float:
    """That of generation_config.json, as vLLM takes it; 1 where it has none."""
    try:
        found: Mapping[str, Any] = json.loads((folder / "generation_config.json").read_text())
    except (OSError, ValueError):
        return 1.0
    return float(found.get("temperature") or 1.0)


def _check_stop(pipeline: Pipeline) -> None:
    if not pipeline.has_stop:
        print("generation_config.json names no eos_token_id: generations end at their greatest length only", flush=True)


def _adapter_config(adapter: Adapter) -> Any:
    """The adapter as it was trained: its weights times alpha by rank. Raises Refused."""
    folder = Path(adapter.path)
    try:
        settings = json.loads((folder / "adapter_config.json").read_text())
        alpha = settings["lora_alpha"] / settings["r"]
        loaded = genai.Adapter(str(next(_weights(folder))))
    except StopIteration:
        raise Refused(f"'{folder}' has no adapter_model.safetensors") from None
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError, RuntimeError) as error:
        raise Refused(reason_of(error)) from None
    config = genai.AdapterConfig(mode=genai.AdapterConfig.Mode.MODE_STATIC)
    config.add(loaded, alpha)
    return config


def _weights(folder: Path) -> Iterator[Path]:
    yield from (path for path in (folder / "adapter_model.safetensors",) if path.is_file())
