"""Listing and reading, in each kind of store, and what is said of stores that do not answer as they should."""

from __future__ import annotations

import http.server
import os
import ssl
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from protocol.errors import Internal, InvalidArgument, NotFound, ServerError, Unavailable, Unsupported
from repository.stores.client import Bucket, Patience
from repository.stores.errors import AccessDenied, ObjectChanged
from repository.stores.urls import parse_store_url
from tests.emulators import Store, moto
from tests.repository.stores.endpoint import Handler, answer, endpoint

pytestmark = pytest.mark.slow

QUICK = Patience(connect_seconds=1, read_seconds=1, request_seconds=1, retries=1, retry_seconds=2)


def bucket(url: str) -> Bucket:
    return Bucket(parse_store_url(url), os.environ, QUICK)


def content(bucket: Bucket, key: str, start: int, end: int) -> bytes:
    item = next(each for each in bucket.list("") if each.key == key)
    return b"".join(bucket.read(item, start, end))


def test_listing_and_reading(store: Store) -> None:
    """A prefix is a whole directory; keys are what they are, also with marks and letters of any kind."""
    names = ["models/a/1/model.onnx", "models/a b/ü +%20#?&=.txt", "models2/x", "y"]
    for number, name in enumerate(names):
        store.put(name, b"0123456789" * (number + 1))
    made = bucket(store.url)
    assert sorted(each.key for each in made.list("")) == sorted(names)
    assert sorted(each.key for each in made.list("models")) == sorted(names[:2])
    assert made.list("absent") == []
    for number, name in enumerate(names):
        assert content(made, name, 0, 10 * (number + 1)) == b"0123456789" * (number + 1)
    assert content(made, names[1], 5, 15) == b"5678901234"
    listed = made.list("models2")[0]
    assert (listed.size, bool(listed.etag), listed.modified > 10**18) == (30, True, True)


def test_an_object_that_has_changed_or_gone(store: Store) -> None:
    """Is told from one that cannot be had."""
    store.put("a/b", b"first")
    made = bucket(store.url)
    (item,) = made.list("a")
    store.put("a/b", b"other")
    with pytest.raises(ObjectChanged, match="cannot read 'a/b': the object has changed since it was listed"):
        b"".join(made.read(item, 0, 5))
    store.delete("a/b")
    with pytest.raises(ServerError, match="cannot read 'a/b'"):
        b"".join(made.read(item, 0, 5))


def test_no_such_bucket(store: Store) -> None:
    place, _, name = store.url.rpartition("/")
    with pytest.raises(NotFound, match=rf"{place}/absent{name}: cannot list 'models/': there is no .*absent{name}'"):
        bucket(f"{place}/absent{name}").list("models")


def test_a_wrong_key_for_azure(new_store: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch) -> None:
    url = new_store("as").url
    monkeypatch.setenv("AZURE_STORAGE_KEY", "AAAA")
    with pytest.raises(AccessDenied, match=r"container '.*' was denied .*AuthorizationFailure.*AZURE_STORAGE_KEY"):
        bucket(url).list("")
    monkeypatch.setenv("AZURE_STORAGE_KEY", "no base64!")
    with pytest.raises(Internal, match=r"cannot open the store: .*Access Key"):
        bucket(url).list("")


def test_an_unknown_key_for_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with moto({"INITIAL_NO_AUTH_ACTION_COUNT": "0"}) as address:
        url = f"s3://{address}/bucket"
        with pytest.raises(AccessDenied, match=r"bucket 'bucket' was denied \(status 403, InvalidAccessKeyId"):
            bucket(url).list("")


def test_credentials_are_read_again_when_access_is_denied(s3: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may have been replaced since the store was opened."""
    asked: list[str] = []

    def handle(request: http.server.BaseHTTPRequestHandler) -> None:
        key = request.headers["Authorization"].partition("Credential=")[2].partition("/")[0]
        asked.append(key)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "new")
        answer(*(403, "<Error><Code>ExpiredToken</Code></Error>") if key == "old" else (200, EMPTY))(request)

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "old")
    with endpoint(handle) as address:
        assert bucket(f"s3://{address}/b").list("") == []
    assert asked == ["old", "new"]


EMPTY = '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><KeyCount>0</KeyCount></ListBucketResult>'


@pytest.mark.parametrize(
    ("handle", "kind", "expected"),
    [
        (answer(301), InvalidArgument, "bucket 'b' lies in another region.*AWS_DEFAULT_REGION"),
        (
            answer(
                400, "<Error><Code>AuthorizationHeaderMalformed</Code><Message>expecting eu-west-1</Message></Error>"
            ),
            InvalidArgument,
            "another region .*expecting eu-west-1",
        ),
        (answer(403, "<Error><Code>AccessDenied</Code></Error>"), AccessDenied, r"\(status 403, AccessDenied\)"),
        (answer(503, "<Error><Code>SlowDown</Code></Error>"), Unavailable, r"\(status 503, SlowDown\)"),
        (answer(500), Unavailable, r"did not answer as it should \(status 500\)"),
        (answer(404), NotFound, "there is no bucket 'b'"),
    ],
)
def test_answers_that_are_errors(s3: Store, handle: Handler, kind: type[ServerError], expected: str) -> None:
    with endpoint(handle) as address, pytest.raises(kind, match=expected) as raised:
        bucket(f"s3://{address}/b/models").list("models")
    assert str(raised.value).startswith(f"s3://{address.removeprefix('http://')}/b/models: cannot list 'models/': ")


def test_no_signature_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that of an address."""
    monkeypatch.setenv("AZURE_STORAGE_SAS_KEY", "sv=2024&sig=c2VjcmV0")
    asked: list[str] = []

    def handle(request: http.server.BaseHTTPRequestHandler) -> None:
        asked.append(request.path)
        answer(409)(request)

    with endpoint(handle) as address:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{address}/account")
        with pytest.raises(Internal, match=r"as://account/container: cannot list the bucket: .*409") as raised:
            bucket("as://account/container").list("")
    assert "c2VjcmV0" in asked[0]
    assert "c2VjcmV0" not in str(raised.value)


def test_errors_of_the_store_are_tried_again(s3: Store) -> None:
    calls: list[Handler] = [answer(500), answer(200, EMPTY)]
    with endpoint(lambda request: calls.pop(0)(request)) as address:
        assert bucket(f"s3://{address}/b").list("") == []


def test_no_answer_in_time(s3: Store) -> None:
    ended = threading.Event()

    def hang(request: http.server.BaseHTTPRequestHandler) -> None:
        ended.wait(60)

    with endpoint(hang) as address:
        with pytest.raises(Unavailable, match=r"did not answer as it should \(it took too long\)"):
            bucket(f"s3://{address}/b").list("")
        ended.set()


@pytest.mark.parametrize("host", ["127.0.0.1:1", "nowhere.invalid:80"])
def test_no_store_there(s3: Store, host: str) -> None:
    with pytest.raises(Unavailable, match=r"did not answer as it should \(no connection\)"):
        bucket(f"s3://{host}/b").list("")


def test_https(s3: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With certificates that the system trusts, or those of AWS_CA_BUNDLE."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with endpoint(answer(200, EMPTY), context) as address:
        with pytest.raises(Unavailable, match=r"\(its certificate is not trusted\)"):
            bucket(f"s3://{address}/b").list("")
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
        assert bucket(f"s3://{address}/b").list("") == []
    monkeypatch.setenv("AWS_CA_BUNDLE", "/absent")
    with pytest.raises(InvalidArgument, match="AWS_CA_BUNDLE: cannot read '/absent': No such file"):
        bucket(f"s3://{address}/b").list("")


def test_no_credentials(s3: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that has no identity of its own either."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(AccessDenied, match="no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET"):
        bucket(s3.url).list("")


def test_keys_that_no_directory_can_have(s3: Store) -> None:
    s3.put_raw("m/a//b", b"x")
    with pytest.raises(InvalidArgument, match=r"'m/': .*m/a//b.*expected keys without '//'"):
        bucket(s3.url).list("m")


def test_without_the_library(s3: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(Unsupported, match=r"need the package obstore: pip install 'trioton\[stores\]'"):
        bucket(s3.url).list("")
