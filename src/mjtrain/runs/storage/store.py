"""Objects below a URL: the URL, the credentials, and the only use of obstore."""

import configparser
import contextlib
import fcntl
import hashlib
import os
import re
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from mjtrain.runtime import heartbeat
from mjtrain.runtime.errors import OutsideError, RequestError, require

_SETTINGS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
    "endpoint_url": "endpoint",
}
_KEYS = ("access_key_id", "secret_access_key", "session_token")
_SECRET_NAME = re.compile(
    r"^(?!.*(_FILE|APPLICATION_CREDENTIALS)$).*(secret|token|password|credential|(^|_)(key|sas|access_key)(_|$))",
    re.IGNORECASE,
)
"""Variables that have a secret, and not the path of a file with one."""

_FROM_ENVIRONMENT = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)

_REFUSALS = re.compile(
    r"AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|InvalidBucketName|PermanentRedirect|"
    r"AuthorizationHeaderMalformed|AuthenticationFailed|AuthorizationPermissionMismatch|AllAccessDisabled|"
    r"\b40[13]\b (Unauthorized|Forbidden)|status.{0,20}\b40[13]\b|PermissionDenied|UnauthenticatedError|"
    r"Permission denied|Read-only file system|Not a directory|File name too long"
)
"""What the messages of obstore, of storages and of file systems say for a `StorageRefusedError`."""

_NETLOC = re.compile(r"([\w.~!$&'()*+,;=:%-]*@)?([\w.~-]+|\[[0-9a-f:.]+\])(:\d*)?", re.ASCII | re.IGNORECASE)
"""User and password, host and port of an address, as obstore takes them."""

SCHEMES = ("s3", "gs", "az", "file")

PIECE_SIZE = 5 << 20
"""Bytes of one request; larger objects go and come in several, each with separate time-outs and retries."""

_CLIENT = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(seconds=120)}
_RETRIES = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=5), "base": 2},
}

ValueT = TypeVar("ValueT")

Version = dict[str, str]
"""Which of the contents that an object has had was read, as obstore takes it for a condition."""


def s3_options(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """Read from AWS's files, whose paths and profile it may name, the settings that the environment does not give."""
    options = {}
    profile = environ.get("AWS_PROFILE", "default")
    for variable, name, section in (
        ("AWS_CONFIG_FILE", "config", profile if profile == "default" else f"profile {profile}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", profile),
    ):
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read(Path(environ.get(variable, home / ".aws" / name)).expanduser())
        except (configparser.Error, UnicodeDecodeError):
            continue
        if parser.has_section(section):
            options |= {_SETTINGS[key]: value for key, value in parser.items(section) if key in _SETTINGS and value}
    if any(environ.get(name) for name in _FROM_ENVIRONMENT):
        options = {key: value for key, value in options.items() if key not in _KEYS}
    if environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"):
        options.pop("region", None)
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):  # the last one that is set wins
        if environ.get(name):
            options["endpoint"] = environ[name]
    return options


def scrub(message: str, options: Mapping[str, str]) -> str:
    """Turn an error's text into one line without the secrets in the environment and in these options."""
    line, _, xml = message.partition("\n\nDebug source")[0].partition("<?xml")
    explained = re.search(r"<Message>(.*?)</Message>", xml, re.DOTALL)
    line = " ".join(f"{line} {explained[1] if explained else ''}".split())
    for name, value in {**os.environ, **options}.items():
        if len(value) >= 8 and _SECRET_NAME.search(name):
            line = line.replace(value, "***")
    return line[:500]


class StorageError(OutsideError):
    """The storage cannot be reached or reports an error. The message is one line without secrets."""


class StorageRefusedError(StorageError):
    """The storage refuses, as it will again: no such bucket, no permission, wrong credentials or settings."""


class ConflictError(StorageError):
    """Another writer changed the object after it was read."""


def is_url(text: object) -> bool:
    """Return whether a value is a URL and not a path."""
    return isinstance(text, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL."""
    try:
        parts = urlsplit(url)
        if "\0" in unquote(parts.path):
            raise ValueError("it contains a null character")
        return parts
    except ValueError as error:
        shown = f"{url.partition('://')[0]}://…" if "@" in url else hide_query(url)
        raise RequestError(f"{shown}: is not a valid URL ({error})") from error


def hide_query(url: str) -> str:
    """Return the address of a web page without its query, which may be a key; anything else as it is."""
    return re.split(r"[?#]", url, maxsplit=1)[0] if re.match("https?://", url, re.IGNORECASE) else url


def check_url(flag: str, url: str) -> str:
    """Check a URL and return it without a trailing slash; an error does not repeat credentials that it carries."""
    scheme, _, rest = url.partition("://")
    allowed = ", ".join(f"{name}://" for name in SCHEMES)
    if not is_url(url) or scheme not in SCHEMES:
        shown = f"{scheme}://…" if "@" in url else url
        raise RequestError(f"{flag} {shown}: give a URL that begins with one of {allowed}")
    parts = split_url(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise RequestError(
            f"{flag} {scheme}://…: must not carry credentials or a query; set them in the environment, such as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or in the machine's own configuration"
        )
    if scheme == "file" and (parts.netloc or not parts.path.strip("/")):
        raise RequestError(f"{flag} {url}: give an absolute path, as in file:///data/runs/one")
    if scheme != "file" and not parts.netloc:
        raise RequestError(f"{flag} {url}: names no bucket; give {scheme}://bucket/prefix")
    require(f"{flag} {url}:", "storage", "obstore")
    return f"{scheme}://{rest.rstrip('/')}"


def local_folder(url: str) -> Path | None:
    """Return the folder of a URL that begins with file://; None for any other."""
    return Path(unquote(urlsplit(url).path)) if urlsplit(url).scheme == "file" else None


def _is_plain_http(endpoint: str | None) -> bool:
    """Whether an endpoint of S3 is one of http://; what is not an address would make obstore panic, and is refused."""
    if not endpoint:
        return False
    with contextlib.suppress(OSError, ValueError):  # of the host; of the port
        parts = urlsplit(endpoint)
        is_valid = parts.scheme in ("http", "https") and parts.port != 0 and not re.search(r"\s", endpoint)
        if is_valid and _NETLOC.fullmatch(parts.netloc):
            _check_host(parts.hostname or "")
            return parts.scheme == "http"
    shown = endpoint.rpartition("@")[2]
    raise StorageRefusedError(f"the endpoint of S3 {shown!r}: is not an address; give one such as https://host:9000")


def _check_host(host: str) -> None:
    """Raise an OSError for numbers that are not an IP address; what has letters is a name."""
    if ":" in host:
        socket.inet_pton(socket.AF_INET6, host)
    elif re.fullmatch(r"\d+|0x[0-9a-f]*", host.rstrip(".").rpartition(".")[2]):
        socket.inet_aton(host)


class Storage:
    """What is stored below a URL. Every method raises StorageError where the storage fails."""

    def __init__(self, url: str) -> None:
        """Prepare the client. Nothing is sent."""
        from obstore import store
        from obstore.exceptions import BaseError

        self.url = url
        self._folder = local_folder(url)
        self._options: dict[str, str] = {}
        settings: dict[str, Any] = {"client_options": _CLIENT, "retry_config": _RETRIES}
        if url.startswith("s3://"):
            self._options = s3_options(os.environ, Path.home())
            plain_http = _is_plain_http(self._options.get("endpoint"))  # only if the user asks for it
            settings |= {"config": self._options, "client_options": {**_CLIENT, "allow_http": plain_http}}

        def make() -> Any:
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                return store.LocalStore(self._folder)
            try:
                return store.from_url(url, **settings)
            except (BaseError, OSError, ValueError) as error:  # nothing is sent, so this is as wrong the next time
                raise StorageRefusedError(scrub(str(error), self._options)) from None

        self._store = self._attempt(make)

    def read(self, name: str) -> tuple[bytes, Version] | None:
        """Return a small object's content and version; None if the object does not exist."""

        def get() -> tuple[bytes, Version]:
            found = self._store.get(name)
            return bytes(found.bytes()), {key: found.meta[key] for key in ("e_tag", "version") if found.meta[key]}

        return self._find(get)

    def replace(self, name: str, content: bytes, version: Version | None) -> None:
        """Write a small object of the version that `read` returned (None: it was missing), or raise a ConflictError."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        def put() -> None:
            if self._folder is None:
                self._store.put(name, content, mode="create" if version is None else version)
                return
            with (self._folder / ".lock").open("w") as file:  # a file system has no conditional writes
                fcntl.flock(file, fcntl.LOCK_EX)
                now = self.read(name)
                if (now and now[1]) != version:
                    raise ConflictError(f"{self.url}/{name} was changed by another writer")
                self._store.put(name, content)

        try:
            self._attempt(put)
        except (AlreadyExistsError, PreconditionError):
            raise ConflictError(f"{self.url}/{name} was changed by another writer") from None
        except FileNotFoundError as error:
            raise StorageError(str(error)) from None

    def upload(self, name: str, file: IO[bytes]) -> None:
        """Store a file's content; the object becomes visible when it is complete."""
        file.seek(0)
        try:
            self._attempt(lambda: self._store.put(name, file, chunk_size=PIECE_SIZE, max_concurrency=2))
        except FileNotFoundError as error:
            raise StorageError(str(error)) from None

    def download(self, name: str, size: int, file: IO[bytes]) -> str:
        """Write an object to a file and return its SHA-256 in hex; raises a FileNotFoundError if it is missing."""
        digest = hashlib.sha256()
        for begin in range(0, size, PIECE_SIZE):
            end = min(begin + PIECE_SIZE, size)
            piece = self._attempt(lambda start=begin, end=end: self._store.get_range(name, start=start, end=end))
            heartbeat.beat()
            digest.update(piece)
            file.write(piece)
        return digest.hexdigest()

    def size(self, name: str) -> int | None:
        """Return an object's size in bytes; None if the object does not exist."""
        return self._find(lambda: self._store.head(name)["size"])

    def list_objects(self) -> dict[str, int]:
        """Return the names of all objects below the URL, with their sizes in bytes."""
        return self._find(lambda: {meta["path"]: meta["size"] for page in self._store.list() for meta in page}) or {}

    def delete(self, names: list[str]) -> None:
        """Delete objects; missing ones are not an error."""
        for name in names:
            self._find(lambda name=name: self._store.delete(name))

    def _find(self, action: Callable[[], ValueT]) -> ValueT | None:
        """Call an action as `_attempt` does; return None if the object does not exist."""
        try:
            return self._attempt(action)
        except FileNotFoundError:
            return None

    def _attempt(self, action: Callable[[], ValueT]) -> ValueT:
        """Call an action, and turn its errors into a StorageError of one line without secrets."""
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        try:
            return action()
        except (AlreadyExistsError, PreconditionError, StorageError):
            raise
        except (BaseError, OSError, NotImplementedError, ValueError) as error:
            if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
                raise StorageRefusedError(f"{self.url}: the bucket does not exist") from None
            if isinstance(error, FileNotFoundError):
                raise FileNotFoundError(scrub(str(error), self._options)) from None
            refused = _REFUSALS.search(f"{type(error).__name__} {error}") is not None
            kind = StorageRefusedError if refused else StorageError
            raise kind(scrub(str(error), self._options)) from None
