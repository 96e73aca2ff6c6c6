"""OpenVINO GenAI as an engine: continuous batching with a paged cache, on CPUs and Intel's GPUs.

Its folder is what `optimum-cli export openvino` writes. Options, beside the pipeline's own `SchedulerConfig` fields:
`max_loras` (adapters that are loaded at a time, 4), `structure_seconds` (what compiling a structure may take, 5), and
properties of OpenVINO by their names in capitals.

What is to be known of the library: all calls come from one thread; a cancelled request frees its blocks with the next
step, and one whose handle is dropped is cancelled; one that does not fit into the cache ends as IGNORED, without a
word; an exception of `step` leaves the pipeline broken for good, so nothing that may raise there gets in
(`structure_judge`); adapters in a generation's configuration have no effect, so each adapter has a pipeline of its own;
the seed is 0 unless one is given; and with prefixes kept, a few generations in a thousand were wrong where the cache
was short of room, so they are not unless that is asked for.

A folder with an encoder of pictures makes a pipeline that sees: it takes texts in place of token ids, and puts the
token that begins a text in front of them itself.
"""

from __future__ import annotations

import json
import os
import random
import select
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

from .engine import (
    Adapter,
    Engine,
    EngineInfo,
    EngineModel,
    Event,
    Generation,
    Image,
    Refused,
    Sampling,
    Stats,
    TokenLogprob,
)
from .structure_judge import StructureJudge
from .structures import reason_of, structured

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
_MOST_KEPT = 1 << 29  # bytes of compiled structures
_BLOCK_TOKENS = {"CPU": 32, "GPU": 16}
_LARGEST_SEED = 1 << 63


class _Running:
    """A generation in a pipeline."""

    __slots__ = ("generation", "handle", "is_aborted", "made", "wants_logprobs")

    def __init__(self, generation: Generation, handle: Any) -> None:
        self.generation = generation
        self.handle = handle
        self.wants_logprobs = generation.sampling.logprobs is not None
        self.is_aborted = False
        self.made = 0


class _Pipeline:
    """A pipeline, and what it runs."""

    def __init__(self, made: Any) -> None:
        self.made = made
        self.running: dict[int, _Running] = {}
        config = made.get_config()
        self.defaults = config
        self.stop_ids = set(config.stop_token_ids) | ({config.eos_token_id} - {-1})
        self.eos = config.eos_token_id
        self.requests = self.scheduled = 0
        self.cache_usage = 0.0

    def step(self) -> None:
        made = self.made
        made.step()
        if not made.has_non_finished_requests():
            made.step()  # does nothing but say that the cache is free
        metrics = made.get_metrics()
        self.requests, self.scheduled = metrics.requests, metrics.scheduled_requests
        self.cache_usage = metrics.cache_usage / 100


class OpenVinoGenAiEngine(Engine):
    """See above. The pipeline of an adapter is made with its first generation, and goes when another one needs its
    place; generations wait while none can."""

    def __init__(self) -> None:
        self._pipelines: dict[str, _Pipeline] = {}  # the least recently used first, but for the one without an adapter
        self._by_sequence: dict[int, _Pipeline] = {}
        self._pending: deque[Generation] = deque()  # for a pipeline
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
        base = self._pipelines[""] = self._make(None)
        self._adapters = {each.name: each for each in model.adapters}
        self._temperature = _default_temperature(Path(self._folder))
        _check_stop(base)
        sequences = self._scheduler.max_num_seqs
        features = _SEEING if self._sees else _FEATURES
        return EngineInfo(features, most_logprobs=1, sequences=sequences, adapters=self._most_adapters)

    @property
    def _has_one_thread(self) -> bool:
        """With one, some processors' bf16 ends the process by SIGFPE (openvino 2026.4.1 on one that has AMX)."""
        return bool(self._properties.get("INFERENCE_NUM_THREADS", len(os.sched_getaffinity(0))) == 1)

    def _make(self, adapter: Adapter | None) -> _Pipeline:
        properties = dict(self._properties)
        if adapter is not None:
            properties["adapters"] = _adapter_config(adapter)
        make, place = genai.ContinuousBatchingPipeline, (self._scheduler, self._device)
        if self._tokenizer is None:
            return _Pipeline(make(self._folder, *place, properties))
        return _Pipeline(make(self._folder, self._tokenizer, *place, **properties))

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
            self._pending.append(generation)
            self._admit()
        else:
            self._start(self._pipelines[""], generation)

    def _start(self, pipeline: _Pipeline, generation: Generation) -> None:
        config = self._config(pipeline, generation.sampling)
        sequence, add = generation.sequence, pipeline.made.add_request
        try:
            if self._sees:
                config.apply_chat_template = False
                handle = add(sequence, generation.text, [_picture(each) for each in generation.images], config)
            else:
                handle = add(sequence, openvino.Tensor(np.array([generation.token_ids], dtype=np.int64)), config)
        except RuntimeError as error:  # its checks of the configuration
            raise Refused(reason_of(error)) from None
        pipeline.running[generation.sequence] = _Running(generation, handle)
        self._by_sequence[generation.sequence] = pipeline

    def _config(self, pipeline: _Pipeline, sampling: Sampling) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens = sampling.max_tokens
        config.min_new_tokens = sampling.min_tokens
        config.ignore_eos = sampling.ignore_eos
        stop_ids = set(sampling.stop_token_ids)
        if pipeline.eos != -1:
            config.stop_token_ids = stop_ids | pipeline.stop_ids
            config.set_eos_token_id(pipeline.eos)
        else:
            config.stop_token_ids = stop_ids
        temperature = self._temperature if sampling.temperature is None else sampling.temperature
        config.do_sample = temperature > 0
        if temperature > 0:
            config.temperature = temperature
            config.rng_seed = random.getrandbits(63) if sampling.seed is None else sampling.seed % _LARGEST_SEED
            for name in ("top_p", "min_p"):
                if (value := getattr(sampling, name)) is not None:
                    setattr(config, name, value)
            if sampling.top_k is not None and sampling.top_k > 0:
                config.top_k = sampling.top_k
        for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
            if (value := getattr(sampling, name)) is not None:
                setattr(config, name, value)
        if sampling.logprobs is not None:
            config.logprobs = 1
        if sampling.structure is not None:
            config.structured_output_config = structured(sampling.structure)
        return config

    def abort(self, sequence: int) -> None:
        pipeline = self._by_sequence.get(sequence)
        if pipeline is not None:
            running = pipeline.running[sequence]
            running.is_aborted = True
            running.handle.cancel()
            return
        for waiting in (self._pending, self._judged):
            for generation in waiting:
                if generation.sequence == sequence:
                    waiting.remove(generation)
                    self._ended.append(Event(sequence, finish="abort"))
                    self._forget_structure(generation)
                    return

    def step(self, wake: int) -> Sequence[Event]:
        if self._judged and self._judge is not None:
            if not (self._by_sequence or self._pending or self._ended) and len(self._judged) == self._told:
                select.select([wake, self._judge.descriptor], [], [])
            self._hear(self._judge)
        self._told = len(self._judged)  # by the statistics after this step
        events, self._ended = self._ended, []
        for pipeline in tuple(self._pipelines.values()):
            if pipeline.running:
                pipeline.step()
                for running in tuple(pipeline.running.values()):
                    event = self._read(running)
                    if event is not None:
                        events.append(event)
                        if event.finish:
                            del pipeline.running[event.sequence], self._by_sequence[event.sequence]
        if self._pending:
            self._admit()
        return events

    def _read(self, running: _Running) -> Event | None:
        handle = running.handle
        sequence = running.generation.sequence
        if running.is_aborted:
            return Event(sequence, finish="abort")
        tokens: list[int] = []
        logprobs: list[TokenLogprob] = []
        finish = ""
        while handle.can_read():
            for output in handle.read().values():
                tokens += output.generated_ids
                if running.wants_logprobs:
                    logprobs += [TokenLogprob(each) for each in output.generated_log_probs]
                finish = _FINISHES.get(output.finish_reason, "")
        running.made += len(tokens)
        if not finish:
            status = handle.get_status()
            if status != genai.GenerationStatus.RUNNING:
                finish = self._finish_of(status, running)
        if not tokens and not finish:
            return None
        if finish == "error":
            prompt = len(running.generation.token_ids)
            return Event(sequence, tokens, finish, error=f"a prompt of {prompt} tokens does not fit into the cache")
        stop = tokens[-1] if finish == "stop" and tokens else None
        seen = _prompt_tokens(handle) if finish and running.generation.images else 0
        return Event(sequence, tokens, finish, stop, logprobs, prompt_tokens=seen)

    def _finish_of(self, status: Any, running: _Running) -> str:
        """Without a reason of its own: what does not fit into the cache, perhaps no more."""
        if status == genai.GenerationStatus.IGNORED:
            return "length" if running.made else "error"
        return "stop"

    def stats(self) -> Stats:
        pipelines = self._pipelines.values()
        waiting = sum(each.requests - each.scheduled for each in pipelines)
        running = len(self._by_sequence)
        waiting = min(max(waiting, 0), running)
        device = "GPU" if self._device.startswith("GPU") else "CPU"
        return Stats(
            running - waiting,
            waiting + len(self._pending) + len(self._judged),
            max((each.cache_usage for each in pipelines), default=0.0),
            self._scheduler.num_kv_blocks,
            _BLOCK_TOKENS[device],
        )

    # Structures

    def _hear(self, judge: StructureJudge) -> None:
        """Begin what may begin, and end what may not."""
        for structure, verdict in judge.hear():
            waiting = [each for each in self._judged if each.sampling.structure == structure]
            self._judged = [each for each in self._judged if each.sampling.structure != structure]
            if not verdict.error:
                self._pending.extend(waiting)
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

    def _admit(self) -> None:
        """Start what waits, in the order in which it came, as far as there is a pipeline for it."""
        if self._is_full:
            if self._by_sequence:
                return
            self._renew()
        waiting, self._pending = self._pending, deque()
        for generation in waiting:
            if not self._started(generation):
                self._pending.append(generation)

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

    def _pipeline_of(self, name: str) -> _Pipeline | None:
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
            if name and not pipeline.running:
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
        if pipeline is not None and pipeline.running:
            raise Refused(f"the adapter '{name}' is in use")
        self._pipelines.pop(name, None)
        del self._adapters[name]

    def adapters(self) -> Sequence[Adapter]:
        return tuple(self._adapters.values())

    def close(self) -> None:
        for pipeline in self._pipelines.values():
            for running in pipeline.running.values():
                running.handle.cancel()
        self._pipelines.clear()
        if self._judge is not None:
            self._judge.close()


_FINISHES = {genai.GenerationFinishReason.STOP: "stop", genai.GenerationFinishReason.LENGTH: "length"}


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


def _prompt_tokens(handle: Any) -> int:
    """Of a generation that has ended, with what its pictures have taken; 0 where the library does not say."""
    try:
        return int(handle.get_perf_metrics().get_num_input_tokens())
    except (AttributeError, RuntimeError):  # of older releases; of one that was cut off for want of cache
        return 0


def _picture(image: Image) -> Any:
    pixels = np.frombuffer(image.pixels, np.uint8)
    return openvino.Tensor(pixels.reshape(1, image.height, image.width, 3))


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


def _check_stop(pipeline: _Pipeline) -> None:
    if not pipeline.stop_ids:
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
