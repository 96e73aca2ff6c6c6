"""The routes of OpenAI's interface, and of vLLM's beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from protocol.access.categories import Category
from protocol.http.exchange import Handler
from protocol.http.openai.batches import files
from protocol.http.openai.batches import handlers as batches
from protocol.http.openai.batches.upload import upload_file
from protocol.http.openai.errors import openai_error_reply
from protocol.http.openai.handlers import adapters as openai_adapters
from protocol.http.openai.handlers import health as openai_health
from protocol.http.openai.handlers import models as openai_models
from protocol.http.openai.handlers import sleep as openai_sleep
from protocol.http.openai.handlers.chat import chat_completions
from protocol.http.openai.handlers.completions import completions
from protocol.http.openai.handlers.embeddings import embeddings
from protocol.http.openai.handlers.scores import rerank, score
from protocol.http.openai.handlers.tokens import detokenize, tokenize
from protocol.http.openai.responses import handlers as responses
from protocol.http.openai.responses import kept as kept_responses
from protocol.http.route import Route
from protocol.http.route_table import Forms

OPENAI_FORMS: Forms = ((b"/v1/", openai_error_reply, b""),)


def openai_routes() -> Iterator[Route]:
    def route(
        method: str, path: str, category: Category, handler: Handler, summary: str, *, is_inference: bool = False
    ) -> Route:
        return Route(
            method,
            path,
            category,
            handler,
            summary,
            is_inference=is_inference,
            error_form=openai_error_reply,
        )

    for path, handler, summary in (
        ("/v1/chat/completions", chat_completions, "The next message of a chat"),
        ("/v1/completions", completions, "What may follow a prompt"),
        ("/v1/embeddings", embeddings, "Vectors of texts"),
        ("/v1/responses", responses.create, "The answer to some items"),
        ("/score", score, "How well texts fit each other"),
        ("/v1/score", score, "How well texts fit each other"),
        ("/rerank", rerank, "Texts by how well they fit a query"),
        ("/v1/rerank", rerank, "Texts by how well they fit a query"),
        ("/v2/rerank", rerank, "Texts by how well they fit a query"),
    ):
        yield route("POST", path, Category.INFERENCE, handler, summary, is_inference=True)
    yield from _responses(route)
    yield from _batches()
    metadata = Category.METADATA
    yield route("GET", "/v1/models", metadata, openai_models.list_models, "Text models and their adapters")
    yield route("GET", "/v1/models/{model_name}", metadata, openai_models.retrieve_model, "A text model or adapter")
    for word, handler in (("load", openai_models.load), ("unload", openai_models.unload)):
        path = f"/v1/models/{{model_name}}/{word}"
        yield route("POST", path, Category.MODEL_REPOSITORY, handler, f"{word.capitalize()} a model")
    for word, handler in (("load", openai_adapters.load), ("unload", openai_adapters.unload)):
        path = f"/v1/{word}_lora_adapter"
        yield route("POST", path, Category.MODEL_REPOSITORY, handler, f"{word.capitalize()} a LoRA adapter of a model")
    yield route("POST", "/tokenize", Category.INFERENCE, tokenize, "The token ids of a text or chat")
    yield route("POST", "/detokenize", Category.INFERENCE, detokenize, "The text of token ids")
    for path, handler, summary in (
        ("/sleep", openai_sleep.sleep, "Put a model to sleep"),
        ("/wake_up", openai_sleep.wake_up, "Wake a model"),
        ("/reset_prefix_cache", openai_sleep.reset_prefix_cache, "Have a model forget the prefixes that it keeps"),
    ):
        yield route("POST", path, Category.MODEL_REPOSITORY, handler, summary)
    yield route("GET", "/is_sleeping", metadata, openai_sleep.is_sleeping, "Whether a model sleeps")
    for path in ("/health", "/ping"):
        yield route("GET", path, Category.HEALTH, openai_health.health, "Whether the server takes requests")
    yield route("POST", "/ping", Category.HEALTH, openai_health.health, "Whether the server takes requests")
    yield route("GET", "/health/ready", Category.HEALTH, openai_health.ready, "Whether the server takes requests")
    yield route("GET", "/version", metadata, openai_health.version, "The server's version")


def _responses(route: Callable[..., Route]) -> Iterator[Route]:
    category = Category.INFERENCE
    yield route("POST", "/v1/responses/input_tokens", category, responses.input_tokens, "The tokens of items")
    one = "/v1/responses/{response_id}"
    # Its events may be read as they come: it ends when the client leaves.
    yield route("GET", one, category, kept_responses.retrieve, "A response that was kept", is_inference=True)
    yield route("DELETE", one, category, kept_responses.delete, "Forget a response")
    yield route("POST", f"{one}/cancel", category, kept_responses.cancel, "Stop a response in the background")
    yield route("GET", f"{one}/input_items", category, kept_responses.input_items, "The items of a response's input")


def _batches() -> Iterator[Route]:
    def route(method: str, path: str, handler: Handler, summary: str, *, makes_jobs: bool = False) -> Route:
        return Route(
            method,
            path,
            Category.INFERENCE,
            handler,
            summary,
            makes_jobs=makes_jobs,
            may_wait=path.endswith("/content"),
            takes_codings=method == "POST" and path != "/v1/files",
            streams_body=method == "POST" and path == "/v1/files",
            error_form=openai_error_reply,
        )

    yield route("POST", "/v1/files", upload_file, "Upload a file with requests", makes_jobs=True)
    yield route("GET", "/v1/files", files.list_files, "Files of the caller")
    yield route("GET", "/v1/files/{file_id}", files.retrieve_file, "A file that is kept")
    yield route("DELETE", "/v1/files/{file_id}", files.delete_file, "Remove a file")
    yield route("GET", "/v1/files/{file_id}/content", files.file_content, "The content of a file")
    yield route("POST", "/v1/batches", batches.create_batch, "Answer the requests in a file", makes_jobs=True)
    yield route("GET", "/v1/batches", batches.list_batches, "Batches of the caller")
    yield route("GET", "/v1/batches/{batch_id}", batches.retrieve_batch, "How a batch stands")
    yield route("POST", "/v1/batches/{batch_id}/cancel", batches.cancel_batch, "Cancel a batch")
