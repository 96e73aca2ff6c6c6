"""`ModelConfig`: the whole schema of `config.pbtxt` as typed, frozen values.

Field names, defaults and units are those of Triton's `model_config.proto`; repeated fields are tuples, an unset
message is None. `repository.pbtxt` and `repository.json_form` convert; nothing here does. A changed configuration
is a new value, made with `msgspec.structs.replace`.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from protocol.datatypes import DataType

Dims: TypeAlias = tuple[int, ...]

ENSEMBLE_PLATFORM = "ensemble"


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every message of the schema. Maps default to `{}`, which msgspec copies for each value."""


class TensorFormat(enum.Enum):
    NONE = "FORMAT_NONE"
    NHWC = "FORMAT_NHWC"
    NCHW = "FORMAT_NCHW"


class ModelTensorReshape(Message, frozen=True):
    shape: Dims = ()


class ModelInput(Message, frozen=True):
    name: str = ""
    data_type: DataType = DataType.INVALID
    format: TensorFormat = TensorFormat.NONE
    dims: Dims = ()
    reshape: ModelTensorReshape | None = None
    is_shape_tensor: bool = False
    allow_ragged_batch: bool = False
    optional: bool = False
    is_non_linear_format_io: bool = False

    @property
    def backend_dims(self) -> Dims:
        """The shape that the backend is given, without the batch dimension."""
        return self.dims if self.reshape is None else self.reshape.shape


class ModelOutput(Message, frozen=True):
    name: str = ""
    data_type: DataType = DataType.INVALID
    dims: Dims = ()
    reshape: ModelTensorReshape | None = None
    label_filename: str = ""
    is_shape_tensor: bool = False
    is_non_linear_format_io: bool = False

    @property
    def backend_dims(self) -> Dims:
        """The shape that the backend gives, without the batch dimension."""
        return self.dims if self.reshape is None else self.reshape.shape


class BatchInputKind(enum.Enum):
    ELEMENT_COUNT = "BATCH_ELEMENT_COUNT"
    ACCUMULATED_ELEMENT_COUNT = "BATCH_ACCUMULATED_ELEMENT_COUNT"
    ACCUMULATED_ELEMENT_COUNT_WITH_ZERO = "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO"
    MAX_ELEMENT_COUNT_AS_SHAPE = "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"
    ITEM_SHAPE = "BATCH_ITEM_SHAPE"
    ITEM_SHAPE_FLATTEN = "BATCH_ITEM_SHAPE_FLATTEN"


class BatchInput(Message, frozen=True):
    kind: BatchInputKind = BatchInputKind.ELEMENT_COUNT
    target_name: tuple[str, ...] = ()
    data_type: DataType = DataType.INVALID
    source_input: tuple[str, ...] = ()


class BatchOutputKind(enum.Enum):
    SCATTER_WITH_INPUT_SHAPE = "BATCH_SCATTER_WITH_INPUT_SHAPE"


class BatchOutput(Message, frozen=True):
    target_name: tuple[str, ...] = ()
    kind: BatchOutputKind = BatchOutputKind.SCATTER_WITH_INPUT_SHAPE
    source_input: tuple[str, ...] = ()


class LatestPolicy(Message, frozen=True):
    num_versions: int = 0


class AllPolicy(Message, frozen=True):
    pass


class SpecificPolicy(Message, frozen=True):
    versions: tuple[int, ...] = ()


class ModelVersionPolicy(Message, frozen=True):
    """At most one of the three is set."""

    latest: LatestPolicy | None = None
    all: AllPolicy | None = None
    specific: SpecificPolicy | None = None


class InstanceKind(enum.Enum):
    AUTO = "KIND_AUTO"
    GPU = "KIND_GPU"
    CPU = "KIND_CPU"
    MODEL = "KIND_MODEL"


class RateLimiterResource(Message, frozen=True):
    name: str = ""
    global_: bool = msgspec.field(default=False, name="global")
    count: int = 0


class ModelRateLimiter(Message, frozen=True):
    resources: tuple[RateLimiterResource, ...] = ()
    priority: int = 0


class SecondaryDeviceKind(enum.Enum):
    NVDLA = "KIND_NVDLA"


class SecondaryDevice(Message, frozen=True):
    kind: SecondaryDeviceKind = SecondaryDeviceKind.NVDLA
    device_id: int = 0


class ModelInstanceGroup(Message, frozen=True):
    name: str = ""
    kind: InstanceKind = InstanceKind.AUTO
    count: int = 0
    rate_limiter: ModelRateLimiter | None = None
    gpus: tuple[int, ...] = ()
    secondary_devices: tuple[SecondaryDevice, ...] = ()
    profile: tuple[str, ...] = ()
    passive: bool = False
    host_policy: str = ""


class TimeoutAction(enum.Enum):
    REJECT = "REJECT"
    DELAY = "DELAY"


class ModelQueuePolicy(Message, frozen=True):
    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


class ModelDynamicBatching(Message, frozen=True):
    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: ModelQueuePolicy | None = None
    priority_queue_policy: dict[int, ModelQueuePolicy] = {}


class ControlKind(enum.Enum):
    SEQUENCE_START = "CONTROL_SEQUENCE_START"
    SEQUENCE_READY = "CONTROL_SEQUENCE_READY"
    SEQUENCE_END = "CONTROL_SEQUENCE_END"
    SEQUENCE_CORRID = "CONTROL_SEQUENCE_CORRID"


class Control(Message, frozen=True):
    kind: ControlKind = ControlKind.SEQUENCE_START
    int32_false_true: tuple[int, ...] = ()
    fp32_false_true: tuple[float, ...] = ()
    bool_false_true: tuple[bool, ...] = ()
    data_type: DataType = DataType.INVALID


class ControlInput(Message, frozen=True):
    name: str = ""
    control: tuple[Control, ...] = ()


class InitialState(Message, frozen=True):
    data_type: DataType = DataType.INVALID
    dims: Dims = ()
    zero_data: bool | None = None
    data_file: str | None = None
    name: str = ""


class SequenceState(Message, frozen=True):
    input_name: str = ""
    output_name: str = ""
    data_type: DataType = DataType.INVALID
    dims: Dims = ()
    initial_state: tuple[InitialState, ...] = ()
    use_same_buffer_for_input_output: bool = False
    use_growable_memory: bool = False


class StrategyDirect(Message, frozen=True):
    max_queue_delay_microseconds: int = 0
    minimum_slot_utilization: float = 0.0


class StrategyOldest(Message, frozen=True):
    max_candidate_sequences: int = 0
    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False


class ModelSequenceBatching(Message, frozen=True):
    """At most one of `direct` and `oldest` is set."""

    direct: StrategyDirect | None = None
    oldest: StrategyOldest | None = None
    max_sequence_idle_microseconds: int = 0
    control_input: tuple[ControlInput, ...] = ()
    state: tuple[SequenceState, ...] = ()
    iterative_sequence: bool = False


class EnsembleStep(Message, frozen=True):
    model_name: str = ""
    model_version: int = 0
    input_map: dict[str, str] = {}
    output_map: dict[str, str] = {}
    model_namespace: str = ""


class ModelEnsembling(Message, frozen=True):
    step: tuple[EnsembleStep, ...] = ()
    max_inflight_requests: int = 0


class OptimizationGraph(Message, frozen=True):
    level: int = 0


class ModelPriority(enum.Enum):
    DEFAULT = "PRIORITY_DEFAULT"
    MAX = "PRIORITY_MAX"
    MIN = "PRIORITY_MIN"


class GraphSpecShape(Message, frozen=True):
    dim: Dims = ()


class GraphSpecLowerBound(Message, frozen=True):
    batch_size: int = 0
    input: dict[str, GraphSpecShape] = {}


class GraphSpec(Message, frozen=True):
    batch_size: int = 0
    input: dict[str, GraphSpecShape] = {}
    graph_lower_bound: GraphSpecLowerBound | None = None


class OptimizationCuda(Message, frozen=True):
    graphs: bool = False
    busy_wait_events: bool = False
    graph_spec: tuple[GraphSpec, ...] = ()
    output_copy_stream: bool = False


class Accelerator(Message, frozen=True):
    name: str = ""
    parameters: dict[str, str] = {}


class ExecutionAccelerators(Message, frozen=True):
    gpu_execution_accelerator: tuple[Accelerator, ...] = ()
    cpu_execution_accelerator: tuple[Accelerator, ...] = ()


class PinnedMemoryBuffer(Message, frozen=True):
    enable: bool = False


class ModelOptimizationPolicy(Message, frozen=True):
    graph: OptimizationGraph | None = None
    priority: ModelPriority = ModelPriority.DEFAULT
    cuda: OptimizationCuda | None = None
    execution_accelerators: ExecutionAccelerators | None = None
    input_pinned_memory: PinnedMemoryBuffer | None = None
    output_pinned_memory: PinnedMemoryBuffer | None = None
    gather_kernel_buffer_threshold: int = 0
    eager_batching: bool = False


class WarmupInput(Message, frozen=True):
    """Exactly one of `zero_data`, `random_data` and `input_data_file` is set."""

    data_type: DataType = DataType.INVALID
    dims: Dims = ()
    zero_data: bool | None = None
    random_data: bool | None = None
    input_data_file: str | None = None


class ModelWarmup(Message, frozen=True):
    name: str = ""
    batch_size: int = 0
    inputs: dict[str, WarmupInput] = {}
    count: int = 0


class ModelOperations(Message, frozen=True):
    op_library_filename: tuple[str, ...] = ()


class ModelTransactionPolicy(Message, frozen=True):
    decoupled: bool = False


class RepositoryAgent(Message, frozen=True):
    name: str = ""
    parameters: dict[str, str] = {}


class ModelRepositoryAgents(Message, frozen=True):
    agents: tuple[RepositoryAgent, ...] = ()


class ModelResponseCache(Message, frozen=True):
    enable: bool = False


class MetricIdentifier(Message, frozen=True):
    family: str = ""


class HistogramOptions(Message, frozen=True):
    buckets: tuple[float, ...] = ()


class MetricControl(Message, frozen=True):
    metric_identifier: MetricIdentifier | None = None
    histogram_options: HistogramOptions | None = None


class ModelMetrics(Message, frozen=True):
    metric_control: tuple[MetricControl, ...] = ()


class ModelParameter(Message, frozen=True):
    string_value: str = ""


class ModelConfig(Message, frozen=True):
    """One model's configuration. At most one of the three scheduling fields is set; none means the default
    scheduler. `max_batch_size` 0 means that tensors have no batch dimension."""

    name: str = ""
    platform: str = ""
    backend: str = ""
    runtime: str = ""
    version_policy: ModelVersionPolicy | None = None
    max_batch_size: int = 0
    input: tuple[ModelInput, ...] = ()
    output: tuple[ModelOutput, ...] = ()
    batch_input: tuple[BatchInput, ...] = ()
    batch_output: tuple[BatchOutput, ...] = ()
    optimization: ModelOptimizationPolicy | None = None
    dynamic_batching: ModelDynamicBatching | None = None
    sequence_batching: ModelSequenceBatching | None = None
    ensemble_scheduling: ModelEnsembling | None = None
    instance_group: tuple[ModelInstanceGroup, ...] = ()
    default_model_filename: str = ""
    cc_model_filenames: dict[str, str] = {}
    metric_tags: dict[str, str] = {}
    parameters: dict[str, ModelParameter] = {}
    model_warmup: tuple[ModelWarmup, ...] = ()
    model_operations: ModelOperations | None = None
    model_transaction_policy: ModelTransactionPolicy | None = None
    model_repository_agents: ModelRepositoryAgents | None = None
    response_cache: ModelResponseCache | None = None
    model_metrics: ModelMetrics | None = None

    @property
    def is_batching(self) -> bool:
        """Whether the first dimension of every tensor is the batch."""
        return self.max_batch_size > 0

    @property
    def is_ensemble(self) -> bool:
        return self.platform == ENSEMBLE_PLATFORM

    @property
    def preserves_ordering(self) -> bool:
        """Whether the model's scheduler is to keep the order of requests."""
        sequences = self.sequence_batching
        if sequences is not None:
            return sequences.oldest is not None and sequences.oldest.preserve_ordering
        return self.dynamic_batching is not None and self.dynamic_batching.preserve_ordering

    @property
    def is_decoupled(self) -> bool:
        return self.model_transaction_policy is not None and self.model_transaction_policy.decoupled

    def parameter(self, key: str, default: str = "") -> str:
        """The value of a free-form `parameters` entry."""
        found = self.parameters.get(key)
        return default if found is None else found.string_value
