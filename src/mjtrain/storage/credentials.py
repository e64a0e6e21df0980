"""Credentials from the places where AWS's own tools look, and messages without secrets.

object_store reads the environment and asks the machine (web identity, container, instance). It does not read
AWS's files, `~/.aws/credentials` and `~/.aws/config`.
"""

import configparser
import os
import re
from collections.abc import Mapping
from pathlib import Path

_SETTINGS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
    "endpoint_url": "endpoint",
}
_KEYS = ("access_key_id", "secret_access_key", "session_token")
_SECRET_NAME = re.compile(r"secret|token|password|credential|(^|_)(key|sas|access_key)(_|$)", re.IGNORECASE)
_FROM_ENVIRONMENT = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def s3_options(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """Read the settings that the environment does not give from AWS's files.

    Args:
        environ: Environment variables, which win over the files. AWS_PROFILE and the paths of the files are among them.
        home: Home directory of the user.

    Returns:
        Options of obstore's S3Store; empty if there is no file.
    """
    options = {}
    profile = environ.get("AWS_PROFILE", "default")
    for variable, name, section in (
        ("AWS_CONFIG_FILE", "config", profile if profile == "default" else f"profile {profile}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", profile),
    ):
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read(Path(environ.get(variable, home / ".aws" / name)).expanduser())
        except configparser.Error:
            continue
        if parser.has_section(section):
            options |= {_SETTINGS[key]: value for key, value in parser.items(section) if key in _SETTINGS}
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
