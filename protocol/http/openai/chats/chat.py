"""Chats: from the messages and tools of a request to inferences that can run, and how their texts are read.

What chat completions, responses and Anthropic's messages have in common; each has the same request here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.http.exchange import HttpRequest
from protocol.http.openai.call import Call
from protocol.http.openai.chats.choice import ChatAnswers
from protocol.http.openai.chats.pictures import with_pictures
from protocol.http.openai.chats.thinking import BudgetedCore, check_thinking, plan_thinking
from protocol.http.openai.chats.tools import ToolPlan, answer_parser, needs_special_tokens, plan_tools
from protocol.http.openai.chats.truncation import truncated
from protocol.http.openai.codec.images import count_pictures, image_tensor
from protocol.http.openai.codec.requests import ChatRequest
from protocol.http.openai.codec.sampling import sampling_parameters, wanted_logprobs
from protocol.http.openai.errors import FieldError
from protocol.http.openai.generation import StreamingCore
from protocol.http.openai.inferences import Inferences, plan_inferences
from protocol.http.openai.prompts import Prompt, chat_prompt, cut_prompt, measured
from protocol.http.openai.targets import find_target, sees_pictures
from protocol.http.openai.threads import in_thread
from protocol.text.model import TextModel


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat that can run, by `core`."""

    inferences: Inferences
    answers: ChatAnswers
    core: StreamingCore


async def plan_chat(
    call: Call, body: ChatRequest, *, fits_context: bool = False, truncates: bool = False, wants_details: bool = False
) -> Chat:
    """With `fits_context` an answer may be shorter than was asked for, where the context has no room for more. With
    `truncates` the oldest turns are left out, where it has none for all. With `wants_details` the choice knows more of
    its end, and of its prompt.

    Raises:
        ServerError: the model cannot do what is asked for.
    """
    core, text = call.request.core, call.target.text
    tools = plan_tools(body, text)
    has_budget = body.thinking_token_budget is not None and check_thinking(text, core.model_metadata(call.target.model))
    default = call.request.settings.openai.default_max_tokens
    sees = sees_pictures(core, call.target)
    asked = await with_pictures(call.request, body.messages) if sees else body.messages

    def make_prompt() -> Prompt:
        """In a thread: a template is a program."""
        if not truncates:
            return _prompt(body, text, tools, asked, default, fits_context=fits_context, sees=sees)
        room = _room(body, text)
        return truncated(
            asked,
            lambda messages: _prompt(
                body, text, tools, messages, default, fits_context=fits_context, room=room, sees=sees
            ),
        )

    prompt = await in_thread(call.request, make_prompt)
    sampling = _sampling(body, text, tools)
    thinking = plan_thinking(body, text, prompt, sampling) if has_budget else None
    in_pieces = thinking is not None
    inferences = plan_inferences(call, body, [prompt], sampling, wants_details=wants_details, in_pieces=in_pieces)
    budgeted = None if thinking is None else BudgetedCore(core, text, thinking, body, inferences)
    return Chat(inferences, _answers(body, text, tools, prompt), budgeted or core)


async def count_tokens(request: HttpRequest, body: ChatRequest) -> int:
    """Those of the prompt that a chat would have, with what its pictures take, as far as that is known.

    Raises:
        ServerError: there is no such model, or it has no tokenizer.
    """
    target = await find_target(request.core, body.model, request.settings.openai.lora_separator)
    text = target.text
    tokenizer = text.tokenizer
    if tokenizer is None:
        raise FieldError(f"model '{text.name}' has no tokenizer", "model")
    tools = plan_tools(body, text)
    sees = sees_pictures(request.core, target)

    def count() -> int:
        prompt = _rendered(body, text, tools, body.messages, sees=sees)
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        return len(ids) + (text.pictures.more(ids, count_pictures(body.messages)) if text.pictures and sees else 0)

    return await in_thread(request, count)


def _rendered(
    body: ChatRequest, text: TextModel, tools: ToolPlan, messages: Sequence[Mapping[str, Any]], *, sees: bool = False
) -> str:
    """The prompt's text. Takes as long as the template likes."""
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    return chat_prompt(
        text,
        messages,
        tools.shown,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        documents=body.documents,
        variables=variables,
        sees=sees,
    )


def _prompt(
    body: ChatRequest,
    text: TextModel,
    tools: ToolPlan,
    messages: Sequence[Mapping[str, Any]],
    default: int | None,
    *,
    fits_context: bool,
    room: int = 1,
    sees: bool = False,
) -> Prompt:
    images = image_tensor(messages, text.names.image) if sees else None
    rendered = _rendered(body, text, tools, messages, sees=sees)
    prompt = Prompt(rendered, bool(body.add_special_tokens), images=images)
    return measured(
        text,
        cut_prompt(text, prompt, body.truncate_prompt_tokens, _wanted(body)),
        max_tokens=_wanted(body),
        default=default,
        fits_context=fits_context,
        room=room,
    )


def _wanted(body: ChatRequest) -> int | None:
    return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens


def _room(body: ChatRequest, text: TextModel) -> int:
    """The tokens that are kept free for the answer to a truncated chat."""
    context = text.context_length or 0
    return max(1, min(_wanted(body) or context // 8, context // 2))


def _sampling(body: ChatRequest, text: TextModel, tools: ToolPlan) -> dict[str, Any]:
    sampling = sampling_parameters(body)
    if tools.structure is not None:
        sampling["structured_outputs"] = tools.structure
    if body.skip_special_tokens is None and needs_special_tokens(tools, text):
        sampling["skip_special_tokens"] = False
    return sampling


def _answers(body: ChatRequest, text: TextModel, tools: ToolPlan, prompt: Prompt) -> ChatAnswers:
    return ChatAnswers(
        answer_parser(tools, text, prompt.text, shows_reasoning=body.include_reasoning is not False),
        top_logprobs=wanted_logprobs(body),
        by_ids=bool(body.return_tokens_as_token_ids),
        token_bytes=None if text.tokenizer is None else text.tokenizer.token_bytes,
        ends_with_calls=tools.choice in ("auto", "required"),
    )
