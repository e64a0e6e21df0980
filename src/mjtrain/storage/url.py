"""URLs of object storage; pure."""

import importlib.util
import re
from urllib.parse import urlsplit

from mjtrain.errors import RequestError

SCHEMES = ("s3", "gs", "az", "file")


def is_url(text: object) -> bool:
    """Return whether a value is a URL and not a path."""
    return isinstance(text, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def check_url(flag: str, url: str) -> str:
    """Check a URL and return it without a trailing slash.

    Args:
        flag: The flag that gave it, for messages.
        url: scheme://bucket/prefix.

    Raises:
        RequestError: The scheme is not supported, the URL carries credentials (which the message does not repeat), or
            obstore is not installed.
    """
    scheme, _, rest = url.partition("://")
    allowed = ", ".join(f"{name}://" for name in SCHEMES)
    if not is_url(url) or scheme not in SCHEMES:
        shown = f"{scheme}://…" if "@" in url else url
        raise RequestError(f"{flag} {shown}: give a URL that begins with one of {allowed}")
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise RequestError(
            f"{flag} {scheme}://…: must not carry credentials or a query; set them in the environment, such as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or in the machine's own configuration"
        )
    if scheme == "file" and (parts.netloc or not parts.path.strip("/")):
        raise RequestError(f"{flag} {url}: give an absolute path, as in file:///data/runs/one")
    if scheme != "file" and not parts.netloc:
        raise RequestError(f"{flag} {url}: names no bucket; give {scheme}://bucket/prefix")
    if importlib.util.find_spec("obstore") is None:
        raise RequestError(f"{flag} {url}: needs obstore; install mjtrain[storage], or `uv sync --extra storage`")
    return f"{scheme}://{rest.rstrip('/')}"
