"""What vLLM's outputs say, as events of the engine port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .engine import Event, Generation, TokenLogprob

_FINISHES = {"stop": "stop", "length": "length", "abort": "abort", "repetition": "stop"}
_LEAST_LOGPROB = -9999.0


def event_of(generation: Generation, output: Any, *, is_first: bool) -> Event:
    """What one output has brought, the first one or a later one."""
    sequence = generation.sequence
    made = output.outputs[0]
    tokens = made.token_ids
    reason = made.finish_reason
    if reason is None and not is_first and not made.logprobs:
        return Event(sequence, tokens)
    if reason is not None and reason not in _FINISHES:
        structure = generation.sampling.structure
        kind = structure.kind if structure else ""
        text = f"structured_outputs.{kind} cannot be compiled" if kind else f"vLLM has ended the generation: {reason}"
        return Event(sequence, tokens, "error", error=text, is_refused=bool(kind))
    count = generation.sampling.logprobs or 0
    return Event(
        sequence,
        tokens,
        _FINISHES.get(reason, ""),
        tokens[-1] if reason == "stop" and tokens else None,
        [_logprob(*each, count) for each in zip(tokens, made.logprobs or (), strict=False)],
        output.num_cached_tokens if is_first and output.num_cached_tokens is not None else -1,
        queued_seconds=_queued(output.metrics) if is_first else 0.0,
        prompt_tokens=len(output.prompt_token_ids) if reason is not None and generation.images else 0,
    )


def _queued(times: Any) -> float:
    """Seconds from the scheduler's queue into its first batch, which vLLM has where it keeps statistics."""
    return 0.0 if times is None else max(0.0, float(times.scheduled_ts - times.queued_ts))


def _logprob(token: int, entries: Mapping[int, Any], count: int) -> TokenLogprob:
    """The chosen token's, and those of the likeliest, which are in no order."""
    chosen = entries[token]
    ranked = sorted((each.rank, other, each.logprob) for other, each in entries.items())
    top = [(other, _finite(value)) for _, other, value in ranked[:count]]
    return TokenLogprob(_finite(chosen.logprob), chosen.rank, top)


def _finite(logprob: float) -> float:
    """That of a token which a structure excludes is -inf, for which JSON has no number: as vLLM's own server has it."""
    return logprob if logprob > _LEAST_LOGPROB else _LEAST_LOGPROB
