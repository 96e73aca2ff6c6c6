"""Answer to one request of an engine: its tokens become text, and what is new of it a response. Pure.

Flow: events of the engine → [answer] → inference responses. What a slow client has not been given yet is joined: the
answer is then one response, however many steps there were.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from backends.engines.tensors.request import AnswerOptions
from backends.engines.worker.trioton_engine.engine import Event, TokenLogprob
from protocol.datatypes import DataType
from protocol.messages import InferenceRequest, InferenceResponse, ParameterValue, Tensor, encode_bytes_elements
from protocol.text.stop_strings import StopStrings
from protocol.text.tokenizer import Tokenizer

_TEXT = "text_output"
# The parameter of a request that asks for `stop_reason` and `cached_tokens` among the last response's parameters.
RETURN_DETAILS = "return_details"

_SAME_UNTIL_THE_END = frozenset({"finish_reason", "stop_reason", "num_input_tokens", "batch_index", "sequence_index"})


class Answer:
    """The answer so far. `min_tokens` is how many tokens come before a stop string may end it.

    Attributes:
        finish: how it has ended; empty while it goes on.
        was_cut: a stop string has ended it, of which the engine does not know.
        prompt_tokens: those that were given; once it has ended with what pictures have taken, if the engine says so.
    """

    def __init__(
        self,
        request: InferenceRequest,
        options: AnswerOptions,
        tokenizer: Tokenizer,
        *,
        prompt: str,
        prompt_tokens: int,
        version: int,
        min_tokens: int = 0,
    ) -> None:
        self.finish = ""
        self.was_cut = False
        self._request = request
        self._version = version
        self._tokenizer = tokenizer
        self._options = options
        self._shape = (*options.row, 1)
        wanted = request.requested_outputs
        self._has_text = not wanted or _TEXT in wanted
        self._extras = tuple(name for name in options.known if (name in wanted if wanted else name in options.extras))
        self._has_details = request.parameters.get(RETURN_DETAILS) is True
        self.prompt_tokens = prompt_tokens
        self._min_tokens = min_tokens
        self._detokenizer = tokenizer.detokenizer(skip_special_tokens=options.skips_special_tokens)
        self._stops = StopStrings(options.stop, include=options.includes_stop) if options.stop else None
        self._text = prompt if options.has_prompt else ""
        self._shown = b""
        self._count = 0
        self._told = 0  # of these
        self._cumulative = 0.0
        self._logprobs: list[str] = []  # as JSON
        self._values: list[float] = []  # the same, of the chosen tokens alone
        self._stop_reason: int | str | None = None
        self._cached = -1
        self._same = self._unchanged()

    @property
    def has_news(self) -> bool:
        """Whether there is something to be sent now."""
        if self.finish:
            return True
        return self._options.is_streaming and bool(self._text or self._logprobs or self._values)

    def push(self, event: Event) -> None:
        """Take an event of the generation, unless the answer has ended."""
        if self.finish:
            return
        if event.cached_tokens >= 0:
            self._cached = event.cached_tokens
        shown = event.token_ids
        stop_token = event.stop_token
        if stop_token is not None and not self._options.includes_stop:
            shown = shown[:-1]
        push = self._detokenizer.push
        if self._stops is None:
            for token in shown:
                self._text += push(token)
            self._count += len(event.token_ids)
        else:
            self._push_until_stop(shown, len(event.token_ids), self._stops)
        if event.logprobs:
            self._add_logprobs(event.token_ids, event.logprobs)
        if event.finish and not self.finish:
            self.prompt_tokens = event.prompt_tokens or self.prompt_tokens
            self._end(event.finish, stop_token)

    def _push_until_stop(self, tokens: Sequence[int], count: int, stops: StopStrings) -> None:
        for place, token in enumerate(tokens, start=1):
            text = self._detokenizer.push(token)
            if self._count + place <= self._min_tokens:
                self._text += text
                continue
            self._text += stops.push(text)
            if stops.matched is not None:
                count = place
                self.finish = "stop"
                self.was_cut = True
                self._stop_reason = stops.matched
                break
        self._count += count

    def _end(self, finish: str, stop_token: int | None) -> None:
        self.finish = finish
        self._stop_reason = None if stop_token in self._tokenizer.eos_token_ids else stop_token
        rest = self._detokenizer.finish()
        if self._stops is None:
            self._text += rest
            return
        self._text += self._stops.push(rest)
        if self._stops.matched is None:
            self._text += self._stops.finish()
        else:
            self.finish, self._stop_reason = "stop", self._stops.matched

    def _add_logprobs(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob]) -> None:
        """Of what is told only: behind a stop string there may be more tokens."""
        collected = len(self._logprobs) or len(self._values)
        told = self._count - self._told - collected if self.was_cut else len(tokens)
        for token, each in zip(tokens[:told], logprobs, strict=False):
            self._cumulative += each.logprob
            if "output_log_probs" in self._extras:
                self._values.append(each.logprob)
            if "logprobs" in self._extras:
                self._logprobs.append(self._logprob_json(token, each))

    def _logprob_json(self, token: int, logprob: TokenLogprob) -> str:
        entries = {str(token): _entry(logprob.logprob, logprob.rank, self._tokenizer.token_text(token))}
        for rank, (other, value) in enumerate(logprob.top, start=1):
            entries.setdefault(str(other), _entry(value, rank, self._tokenizer.token_text(other)))
        return msgspec.json.encode(entries).decode()

    def take(self) -> InferenceResponse:
        """What is new, as a response; the last one where the answer has ended."""
        outputs: list[Tensor] = []
        if self._has_text:
            data = self._text.encode("utf-8", "replace")
            if self._options.accumulates:
                data = self._shown = self._shown + data
            outputs.append(Tensor(_TEXT, DataType.BYTES, self._shape, len(data).to_bytes(4, "little") + data))
        self._text = ""
        if self.finish:
            outputs += map(self._extra, self._extras)
        else:
            same = self._same
            outputs += [same.get(name) or self._extra(name) for name in self._extras]
        self._told = self._count
        self._logprobs.clear()
        self._values.clear()
        parameters: dict[str, ParameterValue] = self._details() if self.finish and self._has_details else {}
        request = self._request
        return InferenceResponse(
            request.model_name, self._version, outputs, request.id, parameters, is_final=bool(self.finish)
        )

    def _unchanged(self) -> dict[str, Tensor]:
        """The outputs that are the same in all responses but the last: made once."""
        return {name: self._extra(name) for name in self._extras if name in _SAME_UNTIL_THE_END}

    def _extra(self, name: str) -> Tensor:
        shape = self._shape
        match name:
            case "finish_reason":
                return Tensor(name, DataType.BYTES, shape, encode_bytes_elements([self.finish]))
            case "stop_reason":
                reason = "" if self._stop_reason is None else str(self._stop_reason)
                return Tensor(name, DataType.BYTES, shape, encode_bytes_elements([reason]))
            case "logprobs":
                text = f"[{','.join(self._logprobs)}]"
                return Tensor(name, DataType.BYTES, shape, encode_bytes_elements([text]))
            case "cumulative_logprob" | "cum_log_probs":
                return Tensor(name, DataType.FP32, shape, _floats([self._cumulative]))
            case "output_log_probs":
                return Tensor(name, DataType.FP32, (*shape, len(self._values)), _floats(self._values))
            case "batch_index" | "sequence_index":  # of one row, and one sequence
                return Tensor(name, DataType.INT32, shape, bytes(4))
            case "num_input_tokens":
                return Tensor(name, self._options.counts, shape, self.prompt_tokens.to_bytes(4, "little"))
            case _:
                return Tensor(name, self._options.counts, shape, (self._count - self._told).to_bytes(4, "little"))

    def _details(self) -> dict[str, ParameterValue]:
        details: dict[str, ParameterValue] = {}
        if self._stop_reason is not None:
            details["stop_reason"] = self._stop_reason
        if self._cached >= 0:
            details["cached_tokens"] = self._cached
        return details


def _entry(logprob: float, rank: int, text: str) -> dict[str, object]:
    return {"logprob": logprob, "rank": rank or None, "decoded_token": text}


def _floats(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)
