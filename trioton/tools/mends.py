"""Suggested fixes of `trioton doctor`, by the text of the error."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

# A pattern in the text, and the mend, in which {0} is the pattern's first group.
_MENDS = tuple(
    (re.compile(pattern), mend)
    for pattern, mend in (
        (r"Did you mean '(.+?)'\?$", "write {0}"),
        (r"has no field named \"(.+?)\"", "remove '{0}': the schema of config.pbtxt has no such field here"),
        (
            r"directory name must equal model name",
            "remove the line `name: …` of config.pbtxt, or make it the directory's name",
        ),
        (
            r"model configuration is not provided",
            "write a config.pbtxt, or let the server complete it (without --disable-auto-complete-config)",
        ),
        (
            r"Could not determine backend",
            'put the model file into a version directory by its usual name, or write `backend: "…"` into config.pbtxt',
        ),
        (r"unexpected platform type", 'write `backend: "…"` (or a platform of Triton\'s) into config.pbtxt'),
        (r"unexpected 'platform' and 'backend' pair", "remove the line `platform: …`: the backend says enough"),
        (r"'max_batch_size' must be", "write 0 for tensors without a batch dimension, else the largest batch"),
        (r"must specify 'name'", 'give it a name: `name: "…"`'),
        (r"must specify 'data_type'", "give it a datatype, as `data_type: TYPE_FP32`"),
        (r"must specify 'dims'", "give it `dims: [ … ]`: one number for each dimension but the batch, -1 for any size"),
        (
            r"dimension must be integer >= 1",
            "write the size of each dimension, or -1 for any; the batch dimension is not listed",
        ),
        (r"cannot have empty reshape", "set max_batch_size to 1 or more, or remove the reshape"),
        (r"has different (size|number)", "dims and reshape must have the same elements, and -1 in the same places"),
        (r"preferred (batch )?size must be <=", "raise max_batch_size, or choose smaller preferred sizes"),
        (r"default priority level must be", "set default_priority_level to one of the priority_levels"),
        (
            r"supports only GPU device",
            "serve it where there is an NVIDIA GPU; elsewhere the ONNX file that the plan was built from",
        ),
        (r"KIND_GPU but no GPUs", "set kind: KIND_CPU, or KIND_AUTO to use GPUs where there are any"),
        (r"KIND_CPU but specifies one or more GPUs", "remove `gpus`, or set kind: KIND_GPU"),
        (r"invalid or unsupported gpu id", "list GPUs of this machine, or leave `gpus` out for all of them"),
        (
            r"autofill failed for model .* does not support batching",
            "set max_batch_size: 0, or export the model with a variable first dimension",
        ),
        (
            r"configuration expects (\d+) inputs, model provides",
            "list exactly the model's inputs, or leave `input` out and have it completed",
        ),
        (r"unexpected inference (\w+) '", "use the model's names, or leave `{0}` out and have it completed"),
        (r"the model expects \d+ dimensions", "make `dims` what the model has, or leave inputs and outputs out"),
        (r"configuration expects datatype", "use the model's datatype, or leave inputs and outputs out"),
        (r"pip install ('.+?')", "pip install {0}"),
        (r"No module named '(.+?)'", "install {0} into the server's environment, or give the model its own "
         "(EXECUTION_ENV_PATH)"),
        (
            r"has no class TritonPythonModel",
            "write that class; a torch.nn.Module is served with a config.pbtxt that lists its inputs and outputs, with "
            '`backend: "pytorch"` and `runtime: "model.py"`',
        ),
        (r"convert the model to ONNX", 'convert it, put it there as model.onnx, and write `backend: "onnxruntime"`'),
        (r"try specifying runtime", "correct `backend`, or install the package that offers it"),
        (r"cannot be read as a function of jax.export", "write into the file what `exported.serialize()` returns"),
        (
            r"leaves of the function's first positional argument",
            "save exactly the leaves of that argument, or take the file away where it is an input",
        ),
        (r"among the first dimensions of its tensors", "set max_batch_size: 0, or leave it out"),
        (r"failed to read label file", "put the file into the model's directory, or correct label_filename"),
        (r"label file path .* is outside", "name a file in the model's directory"),
        (r"Failed to get the canonical path", "put the environment there, or correct EXECUTION_ENV_PATH"),
        (r"is no program that can be run", "EXECUTION_ENV_PATH must name a virtual environment, or an archive of one"),
        (r"warmup setting expects all variable-size", "give each warm-up input the sizes of all its dimensions"),
        (r"warmup setting for input .* cannot read file", "put the file into the model's folder 'warmup'"),
        (r"does not set required input", "give the warm-up sample every input that the model needs"),
        (r"failed to read the initial_state", "put the file into the model's folder 'initial_state'"),
        (r"at least one version must be available", "make a version directory, as 1/, that version_policy selects"),
        (r"ensemble scheduling cannot be set", 'write `platform: "ensemble"`, and no backend'),
        (r"is not used$", "map it in a step, or remove it from the ensemble's inputs and outputs"),
        (r"is not written", "map an output of a step to it"),
        (r"is unused in ensemble", "map it to an input of another step, or make it an output of the ensemble"),
        (r"circular dependency", "an ensemble cannot need itself: take one step out of the cycle"),
        (r"mapping to non-existing input|mapped from non-existing output", "use the names of the step's model"),
        (r"inconsistent (data type|shape)", "what one step writes must be what the next one reads"),
        (r"expects 1 source input", "name the one input that it is made from: `source_input: \"…\"`"),
        (r"batch input data type must be", "set its data_type to TYPE_INT32 or TYPE_FP32"),
        (r"unknown (source input|target output) name", "name an input or output that the configuration lists"),
        (r"can only be specified once", "remove all but one"),
        (r"gets the requests of a batch as they are", "remove it: only backends that join requests have a use for it"),
        (r"Please disable the response cache", "remove `response_cache`"),
        (r"must not specify either 'int32_false_true'", "a correlation id has a data_type instead: remove the pair"),
        (r"must specify either 'int32_false_true'", "give it a pair of values, as `int32_false_true: [ 0, 1 ]`"),
        (r"specifies more than one from", "keep the pair of the control tensor's datatype"),
        (r"must have exactly 2 entries", "write the value for false, then the one for true"),
        (r"unexpected data type for control", "give the control one of these as its data_type"),
        (r"is specified for multiple control kinds|specifies multiple \w+ tensors", "give each control one tensor"),
        (r"control tensor must have a name", "give it the name of the model's input"),
        (r"preferred (batch )?size must be positive", "remove the sizes below 1"),
        (r"minimum slot utilization must be", "write a number from 0 to 1"),
        (r"'preserve_ordering' is true", "remove `preserve_ordering`, or what it does not go with"),
        (r"priority queue policy must have", "give policies to levels that there are, or raise priority_levels"),
        (r"should not be specified for ensemble|can not be specified for ensemble", "remove it from the ensemble"),
        (r"must have platform type 'ensemble' and empty backend", "remove the line `backend: …`"),
        (r"ensemble scheduling must be set", "give it steps, in `ensemble_scheduling { step [ … ] }`"),
        (r"must specify '(\w+)' (in step|for ensemble)", "write `{0}`"),
        (r"can appear in an output map only once", "give each output a tensor of its own"),
        (r"which only allows maximum batch size to be", "lower the ensemble's max_batch_size, or raise the model's"),
        (r"whose required version", "use -1 for the newest version, or one that the model's policy serves"),
        (r"KIND_MODEL but specifies one or more GPUs", "remove `gpus`: the model chooses its devices"),
        (r"NHWC/NCHW require 3 dims", "list height, width and channels, or remove `format`"),
        (r"shape tensors are only|Non-linear IO format|only supported for TensorRT", "remove it: it is for TensorRT"),
        (r"reshape dimensions must be", "write the sizes that the model has, or -1 where dims has it"),
        (r"initial_state", "let initial_state have the state's data_type and dims, a name, and zero_data or data_file"),
        (r"specified more than once", "give each state an input of its own"),
        (r"use_growable_memory", "set what it names, or remove use_growable_memory"),
        (r"metric (control|identifier) must|histogram options must", "write it, or remove the metric_control"),
        (r"agent '(.+?)'", "correct the agent's name, or install the package that offers '{0}'"),
        (r"which backend '(\w+)' does not support", "remove it, or have the model served by another backend"),
        (
            r"must contain at least one (input|output)",
            "list its inputs and outputs in a config.pbtxt (trioton repo add takes them with --input and --output, or "
            "the file with --config)",
        ),
        (r"which this server does not support yet", "remove what is named, or serve this model elsewhere"),
    )
)  # fmt: skip
_CONTAINS = re.compile(r"contains models that are not available or ambiguous: (.+)$")


def mend_of(text: str, models: Collection[str] = ()) -> str:
    """The mend, or nothing. `models` are the names of all models that there are."""
    if found := _CONTAINS.search(text):
        return "; ".join(_model_mend(name, models) for name in found[1].split(", "))
    for pattern, mend in _MENDS:
        if found := pattern.search(text):
            return mend.format(*found.groups()) if found.groups() else mend
    return ""


def _model_mend(name: str, models: Collection[str]) -> str:
    if name in models:
        return f"mend model '{name}' first"
    nearest = difflib.get_close_matches(name, models, n=1)
    return f"there is no model '{name}'" + (f"; did you mean '{nearest[0]}'?" if nearest else "")
