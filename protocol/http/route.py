"""Route: what the HTTP service knows of one operation, beside its handler."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.access.categories import Category
from protocol.http.codec.binary_type import BinaryType
from protocol.http.errors import ErrorForm, error_reply
from protocol.http.exchange import Handler


@dataclass(frozen=True, slots=True)
class Route:
    """One operation.

    Attributes:
        path: its pattern; `{name}` stands for one part of any text, `{model_version}` for digits only.
        category: what access rules know it by; one for each path, whatever the method.
        summary: one line for people.
        is_inference: whether it runs a model: it may be traced, and is cancelled when the client leaves.
        makes_jobs: whether it has a model run later.
        may_wait: whether it waits for what a model does, though it runs none: it is cancelled when the client leaves.
        has_binary_tail: whether a body may hold binary tensors behind its JSON, and so exceed `max_input_size`.
        binary_type: a media type that says so too, of the platform that the route is for.
        takes_files: whether a body may hold files, and so be long though it only changes the server.
        takes_codings: whether a body may be compressed.
        streams_body: whether its handler reads the body as it comes; it may be as large as a file.
        error_form: how errors are written; one for each path.
        key_header: a header that the caller's key may come in, beside `authorization`; one for each path.
        request_id_header: in which replies have the request's id beside `x-request-id`; one for each path, mostly
            empty.
        is_public: whether it needs no right, as it shows nothing of the models, or judges by itself what it shows; one
            for each path.
    """

    method: str
    path: str
    category: Category
    handler: Handler
    summary: str
    is_inference: bool = False
    makes_jobs: bool = False
    may_wait: bool = False
    has_binary_tail: bool = False
    binary_type: BinaryType | None = None
    takes_files: bool = False
    takes_codings: bool = True
    streams_body: bool = False
    error_form: ErrorForm = error_reply
    key_header: str = ""
    request_id_header: bytes = b""
    is_public: bool = False

    @property
    def is_act(self) -> bool:
        """Whether it may change the server, and is no inference."""
        return self.method != "GET" and not (self.is_inference or self.makes_jobs)

    @property
    def has_short_body(self) -> bool:
        """Whether a body only says what to change. It is read in one go."""
        return self.is_act and self.category is not Category.INFERENCE and not self.takes_files

    @property
    def is_charged(self) -> bool:
        """Whether it costs something of a quota."""
        return self.method == "POST" and (self.is_inference or self.makes_jobs)
