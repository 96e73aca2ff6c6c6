"""Upload of a file: its form is read as it comes, and the file written as it is read. Neither is held in memory."""

from __future__ import annotations

import trio

from protocol.errors import Internal, InvalidArgument
from protocol.http.codec.multipart import FormReader, Part, PartEnd, boundary_of
from protocol.http.exchange import BodyStream, HttpRequest
from protocol.http.openai.batches.call import batches_of
from protocol.http.openai.batches.codec import check_purpose, file_json, upload_seconds
from protocol.http.openai.errors import FieldError
from protocol.http.reply import Reply, json_reply
from protocol.jobs.batches.files import INPUT, StoredFile, new_file_id
from protocol.jobs.batches.store import FileWriter

# Bytes that are written at once.
_WRITE_SIZE = 256 << 10
_MAX_FIELDS, _MAX_FIELD = 32, 4096
_MAX_NAME = 255
_FILE = "file"


async def upload_file(request: HttpRequest) -> Reply:
    """One that is refused, or whose client leaves, leaves nothing."""
    batches, owner = batches_of(request), request.caller
    if request.incoming is None:
        raise Internal("the body of an upload has not been streamed")
    form = _Form(boundary_of(request.headers.get(b"content-type", b"")))
    writer = await batches.file_writer()
    try:
        await form.read(request.incoming, writer)
        check_purpose(form.fields)
        seconds = upload_seconds(form.fields) or batches.keep_seconds
        await writer.finish()
        now = batches.now()
        name = form.file_name or "file"
        file = StoredFile(new_file_id(now), owner, INPUT, name, writer.payload, writer.size, now, now + seconds)
        await batches.keep_file(file, writer)
    finally:
        with trio.CancelScope(shield=True):
            await writer.close()
    return json_reply(file_json(file))


class _Form:
    """The form of an upload.

    Attributes:
        fields: those that are no files.
        file_name: that of the file; None before it has come.
    """

    def __init__(self, boundary: bytes) -> None:
        self.fields: dict[str, str] = {}
        self.file_name: str | None = None
        self._reader = FormReader(boundary)
        self._part: Part | None = None
        self._field = b""
        self._waiting = bytearray()  # of the file

    async def read(self, body: BodyStream, writer: FileWriter) -> None:
        """All of it. Raises FieldError, InvalidArgument, and what reading and writing raise."""
        while data := await body.receive():
            for event in self._reader.feed(data):
                match event:
                    case Part():
                        self._begin(event)
                    case PartEnd():
                        self._end()
                    case _:
                        self._take(event)
            if len(self._waiting) >= _WRITE_SIZE:
                await self._write(writer)
        if not self._reader.has_ended:
            raise InvalidArgument("the form is cut off: its last boundary is missing")
        if self.file_name is None:
            raise FieldError("'file': Field required", _FILE, "missing_required_parameter")
        if self._waiting:
            await self._write(writer)

    def _begin(self, part: Part) -> None:
        self._part, self._field = part, b""
        if part.name == _FILE:
            if self.file_name is not None:
                raise FieldError("'file': expected one file, got several", _FILE)
            self.file_name = "".join(filter(str.isprintable, part.file_name or ""))[:_MAX_NAME]

    def _take(self, data: bytes) -> None:
        assert self._part is not None
        if self._part.name == _FILE:
            self._waiting += data
            return
        self._field += data
        if len(self._field) > _MAX_FIELD or len(self.fields) >= _MAX_FIELDS:
            raise InvalidArgument(f"the form has over {_MAX_FIELDS} fields, or one of over {_MAX_FIELD} bytes")

    def _end(self) -> None:
        assert self._part is not None
        if self._part.name != _FILE:
            self.fields[self._part.name] = self._field.decode("utf-8", "replace")

    async def _write(self, writer: FileWriter) -> None:
        data, self._waiting = self._waiting, bytearray()
        await writer.write(bytes(data))
