"""A server that speaks the part of the Hugging Face Hub's HTTP API that repositories of models need.

Written from the documented API (https://huggingface.co/docs/hub/api) and what `huggingface_hub` asks for. It keeps all
files in commits; it has no large-file storage, so every upload is a regular one.
"""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_a-well-kept-token"


class Hub:
    """Repositories in memory.

    Attributes:
        files: Content by repository and path.
        requests: Method and path of every request.
        knows_users: Whether it says whose a token is; the Hub does so only a few times in a while.
    """

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.requests: list[str] = []
        self.knows_users = True
        hub = self

        class Handler(_Handler):
            owner = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def commit(self, repo: str) -> str:
        """Return the id of the newest commit: it changes with the content."""
        return hashlib.sha1(json.dumps({p: _etag(c) for p, c in self.files[repo].items()}).encode()).hexdigest()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _etag(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    owner: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _json(self, content: Any, status: int = 200) -> None:
        self._answer(status, json.dumps(content).encode(), Content_Type="application/json")

    def do_HEAD(self) -> None:
        self._resolve()

    def do_GET(self) -> None:
        if urlsplit(self.path).path != "/api/whoami-v2":
            self._resolve()
        elif not self.owner.knows_users:
            self._json({"error": "Too many requests."}, 429)
        elif self.headers.get("Authorization") == f"Bearer {TOKEN}":
            self._json({"type": "user", "name": "me"})
        else:
            self._json({"error": "Invalid username or password."}, 401)

    def _resolve(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        self.owner.requests.append(f"{self.command} {path}")
        repo, marker, rest = path.partition("/resolve/")
        name = rest.partition("/")[2]
        if not marker or repo not in self.owner.files:
            self._answer(404, X_Error_Code="RepoNotFound")
        elif name not in self.owner.files[repo]:
            self._answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=self.owner.commit(repo))
        else:
            content = self.owner.files[repo][name]
            self._answer(200, content, ETag=f'"{_etag(content)}"', X_Repo_Commit=self.owner.commit(repo))

    def do_POST(self) -> None:
        path = urlsplit(self.path).path.strip("/")
        self.owner.requests.append(f"POST {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._json({"error": "Invalid username or password."}, 401)
        elif path == "api/repos/create":
            wanted = json.loads(body)
            repo = "/".join(filter(None, (wanted.get("organization"), wanted["name"])))
            self.owner.files.setdefault(repo, {})
            self._json({"url": f"{self.owner.url}/{repo}", "name": repo, "id": repo})
        elif path == "api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            self._json({"files": files})
        elif "/commit/" in path:
            self._commit(path.removeprefix("api/models/").partition("/commit/")[0], body)
        else:
            self._json({"error": "not here"}, 404)

    def _commit(self, repo: str, body: bytes) -> None:
        for line in body.splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                self.owner.files[repo][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
        oid = self.owner.commit(repo)
        url = f"{self.owner.url}/{repo}/commit/{oid}"
        self._json({"success": True, "commitOid": oid, "commitUrl": url, "hookOutput": "", "pullRequestUrl": None})
