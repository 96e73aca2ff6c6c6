"""Text model: what an edge has to know of a model with text in and text out, and how its tensors are named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from protocol.text.pictures import PictureTokens

if TYPE_CHECKING:
    from protocol.text.chat_template import ChatTemplate
    from protocol.text.tokenizer import Tokenizer


class TensorNames(msgspec.Struct, frozen=True):
    """The model's names for the tensors of a text model; the defaults are those of Triton's vLLM backend.

    A name says nothing of whether the model has that tensor: an edge sends only inputs that it has. But `text_input`
    and `text_output` are empty where the model generates no text, and those of embeddings where it embeds none.
    """

    text_input: str = "text_input"
    # The prompt as token ids, in place of the text. Triton's vLLM backend has none.
    prompt_token_ids: str = "prompt_token_ids"
    stream: str = "stream"
    sampling_parameters: str = "sampling_parameters"
    exclude_input_in_output: str = "exclude_input_in_output"
    return_finish_reason: str = "return_finish_reason"
    return_cumulative_logprob: str = "return_cumulative_logprob"
    return_logprobs: str = "return_logprobs"
    return_num_input_tokens: str = "return_num_input_tokens"
    return_num_output_tokens: str = "return_num_output_tokens"
    image: str = "image"
    text_output: str = "text_output"
    finish_reason: str = "finish_reason"
    cumulative_logprob: str = "cumulative_logprob"
    logprobs: str = "logprobs"
    num_input_tokens: str = "num_input_tokens"
    num_output_tokens: str = "num_output_tokens"
    # A JSON object in, a JSON array in `text_output`, as Triton's vLLM backend embeds.
    embedding_request: str = ""
    # A response of a stream has all text so far.
    accumulates: bool = False
    # A text in, a vector out.
    embedding_input: str = ""
    embedding_output: str = ""


class TokenTensors(msgspec.Struct, frozen=True):
    """How a model that reads each text at once takes token ids, and gives an answer for each text.

    Attributes:
        mask: the input that has 0 for tokens that only fill up; empty where the model has none.
        types: the input that tells the first text's tokens from the second's; empty where the model has none.
        rows: the most texts of one inference; 0 where its tensors have no dimension for them.
        length: the tokens that each text is filled up to; 0 where any length will do.
    """

    input: str
    output: str
    mask: str = ""
    types: str = ""
    rows: int = 0
    length: int = 0


class PairTensors(TokenTensors, frozen=True):
    """How a cross-encoder takes pairs of texts, as token ids or as two texts, and gives a score for each.

    Attributes:
        activation: what makes a score of the model's number: `sigmoid` or `identity`.
    """

    takes_texts: bool = False
    activation: str = "sigmoid"


class VectorTensors(TokenTensors, frozen=True):
    """How a model embeds texts that it takes as token ids.

    Attributes:
        pooling: a name of `protocol.text.pooling.POOLINGS`, by which the vectors of a text's tokens become one; empty
            where the output has one vector for each text.
        normalizes: vectors are given the length 1.
        size: the numbers of a vector; 0 where it is not known.
        dimensions: to how many numbers vectors may be cut; None for any.
    """

    pooling: str = ""
    normalizes: bool = True
    size: int = 0
    dimensions: tuple[int, ...] | None = ()


class TextFacts(msgspec.Struct, frozen=True):
    """What is known of one version of a model with text in and text out, beside the parts that work on texts.

    Attributes:
        context_length: in tokens, prompt and output together; None where it is not known.
        tool_parser: a name of `protocol.text.output_parser.TOOL_PARSERS`, or empty.
        reasoning_parser: a name of `protocol.text.output_parser.REASONING_PARSERS`, or empty.
        adapters: the paths of its adapters by their names.
        takes_adapters: they can be changed while it is loaded.
        pairs: how it scores pairs of texts; None for a model that is no cross-encoder.
        vectors: how it embeds token ids; None for a model that does not.
        pictures: what pictures take of a prompt; None where only the engine knows.
        loaded_at: Unix time in seconds.
    """

    name: str
    version: int
    context_length: int | None = None
    tool_parser: str = ""
    reasoning_parser: str = ""
    adapters: Mapping[str, str] = msgspec.field(default_factory=dict)
    names: TensorNames = TensorNames()
    pairs: PairTensors | None = None
    vectors: VectorTensors | None = None
    pictures: PictureTokens | None = None
    loaded_at: int = 0
    takes_adapters: bool = False

    def facts(self) -> dict[str, Any]:
        """These alone, by their names."""
        return {name: getattr(self, name) for name in TextFacts.__struct_fields__}


class TextModel(TextFacts, frozen=True):
    """One version of a model with text. Made when the version loads; another one takes its place when adapters were
    changed. `protocol.text.description` has what another process needs for the same."""

    tokenizer: Tokenizer | None = None
    chat_template: ChatTemplate | None = None
