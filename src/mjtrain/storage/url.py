"""URLs of object storage; pure."""

import importlib.util
import re
from urllib.parse import urlsplit

from mjtrain.errors import RequestError

SCHEMES = ("s3", "gs", "az", "file")


def is_url(text: object) -> bool:
    """Tell a URL from a path or anything else."""
    return isinstance(text, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def check_url(flag: str, url: str) -> str:
    """Return a URL as it is used everywhere: without a slash at the end.

    Args:
        flag: The flag it comes from, for messages.
        url: scheme://bucket/prefix.

    Raises:
        RequestError: It is no URL of a place we can store to, it carries credentials (which the message does not
            repeat), or obstore is not installed.
    """
    scheme, _, rest = url.partition("://")
    allowed = ", ".join(f"{name}://" for name in SCHEMES)
    if not is_url(url) or scheme not in SCHEMES:
        shown = f"{scheme}://…" if "@" in url else url
        raise RequestError(f"{flag} {shown}: give a URL that begins with one of {allowed}")
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise RequestError(
            f"{flag} {scheme}://…: must not carry credentials or a query; they come from the environment, such as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from where the machine keeps them"
        )
    if scheme == "file" and (parts.netloc or not parts.path.strip("/")):
        raise RequestError(f"{flag} {url}: give an absolute path, as in file:///data/runs/one")
    if scheme != "file" and not parts.netloc:
        raise RequestError(f"{flag} {url}: names no bucket; give {scheme}://bucket/prefix")
    if importlib.util.find_spec("obstore") is None:
        raise RequestError(f"{flag} {url}: needs obstore; install mjtrain[storage], or `uv sync --extra storage`")
    return f"{scheme}://{rest.rstrip('/')}"
