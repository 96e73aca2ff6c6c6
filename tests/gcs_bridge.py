"""Google's store for the tests: gcp-storage-emulator, and before it what it lacks of the XML interface.

The emulator stores and serves the bytes, and objects are put into it by its JSON interface. Clients of ours speak XML,
of which it answers only the reading of an object, and that without Last-Modified, ETag and If-Match; and it keeps
policies but lets everybody in. So each request is answered here from the emulator's own listing, metadata, policy and
bytes, and what is put is handed on, in one piece or several. Run as a program, it prints two addresses: of XML, then of
JSON.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
import secrets
import threading
import urllib.error
import urllib.parse
import urllib.request
from datetime import datetime
from email.utils import format_datetime
from typing import Any, ClassVar
from xml.sax.saxutils import escape

from gcp_storage_emulator.server import create_server

from tests.emulators import GCS_PAGE_SIZE

XML = "<?xml version='1.0' encoding='UTF-8'?>"


class Emulator:
    def __init__(self, address: str) -> None:
        self.address = address
        self._lock = threading.Lock()  # it answers one at a time, and lets few wait

    def bytes_of(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        request = urllib.request.Request(self.address + path, headers=headers or {})
        with self._lock:
            try:
                reply = urllib.request.urlopen(request)
            except urllib.error.HTTPError as error:
                reply = error
            with reply:
                return reply.status, dict(reply.headers), reply.read()

    def put(self, bucket: str, key: str, content: bytes) -> dict[str, Any] | None:
        """What it says of the object then; None where it takes none."""
        query = urllib.parse.urlencode({"uploadType": "media", "name": key})
        kind = {"Content-Type": "application/octet-stream"}
        url = f"{self.address}/upload/storage/v1/b/{urllib.parse.quote(bucket, safe='')}/o?{query}"
        request = urllib.request.Request(url, content, kind, method="POST")
        with self._lock:
            try:
                urllib.request.urlopen(request).close()
            except urllib.error.HTTPError as error:
                error.close()
                return None
        return self.json_of(bucket, "o", key)

    def json_of(self, *path: str, query: str = "") -> dict[str, Any] | None:
        """None where it has no such thing."""
        quoted = "/".join(urllib.parse.quote(part, safe="") for part in path)
        status, _, body = self.bytes_of(f"/storage/v1/b/{quoted}{query}")
        return json.loads(body) if status == 200 else None

    def is_public(self, bucket: str) -> bool:
        bindings = (self.json_of(bucket, "iam") or {}).get("bindings", [])
        return any("allUsers" in each["members"] for each in bindings if each["role"] == "roles/storage.objectViewer")


class Bridge(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    emulator: Emulator
    uploads: ClassVar[dict[str, dict[int, bytes]]] = {}  # in several parts, by their ids

    def do_GET(self) -> None:
        bucket, key, query = self.target()
        if self.emulator.json_of(bucket) is None:
            self.fail(404, "NoSuchBucket", "The specified bucket does not exist.")
        elif "Authorization" not in self.headers and not self.emulator.is_public(bucket):
            self.fail(403, "AccessDenied", "Access denied.")
        elif key:
            self.read(bucket, key)
        else:
            self.list(bucket, query)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        bucket, key, query = self.target()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.refuse_stranger():
            return
        if "uploadId" in query:
            self.uploads[query["uploadId"]][int(query["partNumber"])] = body
            self.answer(200, b"", ETag=f'"{hashlib.md5(body).hexdigest()}"')
        else:
            self.keep(bucket, key, body)

    def do_POST(self) -> None:
        bucket, key, query = self.target()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.refuse_stranger():
            return
        if "uploads" in query:
            upload = secrets.token_hex(8)
            self.uploads[upload] = {}
            result = f"<UploadId>{upload}</UploadId>"
            self.answer(200, f"{XML}<InitiateMultipartUploadResult>{result}</InitiateMultipartUploadResult>".encode())
        else:
            parts = self.uploads.pop(query["uploadId"])
            wanted = [int(each) for each in re.findall(rb"<PartNumber>([0-9]+)</PartNumber>", body)]
            self.keep(bucket, key, b"".join(parts[each] for each in wanted), is_whole=True)

    def target(self) -> tuple[str, str, dict[str, str]]:
        url = urllib.parse.urlsplit(self.path)
        bucket, _, key = url.path.removeprefix("/").partition("/")
        return bucket, urllib.parse.unquote(key), dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))

    def refuse_stranger(self) -> bool:
        """Nobody writes without an authorization."""
        if "Authorization" in self.headers:
            return False
        self.fail(403, "AccessDenied", "Access denied.")
        return True

    def keep(self, bucket: str, key: str, content: bytes, *, is_whole: bool = False) -> None:
        about = self.emulator.put(bucket, key, content)
        if about is None:
            self.fail(404, "NoSuchBucket", "The specified bucket does not exist.")
        elif is_whole:
            result = f"<ETag>{escape(etag(about))}</ETag>"
            text = f"{XML}<CompleteMultipartUploadResult>{result}</CompleteMultipartUploadResult>"
            self.answer(200, text.encode(), ETag=etag(about))
        else:
            self.answer(200, b"", ETag=etag(about))

    def list(self, bucket: str, query: dict[str, str]) -> None:
        prefix = urllib.parse.urlencode({"prefix": query.get("prefix", "")})
        listed = (self.emulator.json_of(bucket, "o", query=f"?{prefix}") or {})["items"]
        rest = [each for each in listed if each["name"] > query.get("continuation-token", "")]
        page = rest[:GCS_PAGE_SIZE]
        contents = "".join(
            f"<Contents><Key>{escape(each['name'])}</Key><LastModified>{each['updated']}</LastModified>"
            f"<ETag>{escape(etag(each))}</ETag><Size>{each['size']}</Size></Contents>"
            for each in page
        )
        token = (
            f"<NextContinuationToken>{escape(page[-1]['name'])}</NextContinuationToken>" if rest[len(page) :] else ""
        )
        self.answer(200, f"{XML}<ListBucketResult>{token}{contents}</ListBucketResult>".encode())

    def read(self, bucket: str, key: str) -> None:
        wanted = {"Range": self.headers["Range"]} if "Range" in self.headers else {}
        while (about := self.emulator.json_of(bucket, "o", key)) is not None:
            status, headers, body = self.emulator.bytes_of(f"/{bucket}/{urllib.parse.quote(key, safe='')}", wanted)
            if about == self.emulator.json_of(bucket, "o", key):
                break  # so these bytes are what it is about
        if about is None:
            self.fail(404, "NoSuchKey", "The specified key does not exist.")
        elif self.headers.get("If-Match", etag(about)) != etag(about):
            self.fail(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold.")
        else:
            modified = format_datetime(datetime.fromisoformat(about["updated"]), usegmt=True)
            part = {"Content_Range": headers["Content-Range"]} if status == 206 else {}
            self.answer(status, body, ETag=etag(about), Last_Modified=modified, **part)

    def fail(self, status: int, code: str, message: str) -> None:
        self.answer(status, f"{XML}<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def etag(about: dict[str, Any]) -> str:
    """As the XML interface has it: the bytes' MD5, in quotes."""
    return f'"{base64.b64decode(about["md5Hash"]).hex()}"'


def main() -> None:
    bridge = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bridge)
    with create_server("127.0.0.1", 0, in_memory=True) as emulator:
        port = emulator._api._httpd.server_port  # it has no other way to be asked which port it was given
        Bridge.emulator = Emulator(f"http://127.0.0.1:{port}")
        print(f"Running on http://127.0.0.1:{bridge.server_port} {Bridge.emulator.address}", flush=True)
        threading.Thread(target=bridge.serve_forever, daemon=True).start()
        threading.Event().wait()


if __name__ == "__main__":
    main()
