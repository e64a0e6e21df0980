"""A server that speaks the part of W&B's HTTP API that reading artifacts needs.

Written from the queries in W&B's package (`wandb/sdk/artifacts/_generated/operations.py`) and its manifest, version 1.
Every artifact has the versions v0, v1, …; the last one is also `latest`.
"""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

KEY = "0123456789abcdef0123456789abcdef01234567"
ORGANIZATION = "the-org"


class WandbServer:
    """Artifacts in memory, of the user `me` in the organization `the-org`.

    Attributes:
        artifacts: Versions by entity/project/name, the files of each by their names.
        references: References in place of files, by file name.
        damaged: Content that is served in place of that which the artifact lists, by file name.
        requests: Path of every request, or the name of its query.
    """

    def __init__(self) -> None:
        self.artifacts: dict[str, list[dict[str, bytes]]] = {}
        self.references: dict[str, str] = {}
        self.damaged: dict[str, bytes] = {}
        self.stalled: threading.Event | None = None
        """Files are given when this is set."""
        self.requests: list[str] = []
        server = self

        class Handler(_Handler):
            owner = server

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the data of a GraphQL query."""
        word = query.split("(")[0].split("{")[0].split()[-1]
        self.requests.append(word)
        if word == "ArtifactMembershipByName":
            return {"project": self._find("{entity}/{project}".format(**variables), variables["name"])}
        if word == "FetchArtifactManifest":
            return {"artifact": {"currentManifest": {"file": {"directUrl": f"{self.url}/manifest/{variables['id']}"}}}}
        if word == "FetchOrgInfoFromEntity":
            organization = {"name": ORGANIZATION, "orgEntity": {"name": ORGANIZATION}}
            return {"entity": {"organization": None, "user": {"organizations": [organization]}}}
        viewer = {"id": "1", "entity": "me", "username": "me", "email": "", "flags": "{}", "teams": {"edges": []}}
        return {"viewer": viewer, "serverInfo": {"features": []}}

    def _find(self, project: str, text: str) -> dict[str, Any] | None:
        name, _, version = text.partition(":")
        if not any(path.startswith(f"{project}/") for path in self.artifacts):
            return None
        versions = self.artifacts.get(f"{project}/{name}", [])
        number = len(versions) - 1 if version == "latest" else int(version[1:])
        if not 0 <= number < len(versions):
            return {"artifactCollectionMembership": None}
        entity, _, project = project.partition("/")
        of = {"id": "p", "internalId": "p", "name": project, "entity": {"name": entity}}
        key = base64.urlsafe_b64encode(f"{entity}/{project}/{name}:{number}".encode()).decode()
        artifact = {
            "__typename": "Artifact", "id": key, "versionIndex": number, "artifactType": {"name": "motions"},
            "artifactSequence": {"__typename": "ArtifactSequence", "name": name, "project": of},
            "description": None, "metadata": None, "ttlDurationSeconds": 0, "ttlIsInherited": False, "tags": [],
            "historyStep": None, "state": "COMMITTED", "size": 1, "digest": "0" * 32, "commitHash": None,
            "fileCount": 1, "createdAt": "2026-01-01T00:00:00", "updatedAt": None,
        }  # fmt: skip
        collection = {"__typename": "ArtifactSequence", "name": name, "project": of}
        alias = {"__typename": "ArtifactAlias", "id": "a", "alias": f"v{number}"}
        membership = {
            "__typename": "ArtifactCollectionMembership", "id": "m", "versionIndex": number, "aliases": [alias],
            "createdAt": "2026-01-01T00:00:00", "artifactCollection": collection, "artifact": artifact,
        }  # fmt: skip
        return {"artifactCollectionMembership": membership}

    def files(self, key: str) -> dict[str, bytes]:
        path, _, number = base64.urlsafe_b64decode(key).decode().rpartition(":")
        return self.artifacts[path][int(number)]

    def manifest(self, key: str) -> dict[str, Any]:
        contents = {
            name: {"digest": base64.b64encode(hashlib.md5(data).digest()).decode(), "size": len(data)}
            | {"birthArtifactID": key}
            | ({"ref": self.references[name]} if name in self.references else {})
            for name, data in self.files(key).items()
        }
        policy = {"storagePolicy": "wandb-storage-policy-v1", "storagePolicyConfig": {"storageLayout": "V2"}}
        return {"version": 1, **policy, "contents": contents}


class _Handler(BaseHTTPRequestHandler):
    owner: WandbServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, content: bytes, status: int = 200, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/graphql":  # telemetry
            self._answer(b"", kind="application/x-protobuf")
        elif not self._is_known():
            self._answer(json.dumps({"errors": [{"message": "user is not logged in"}]}).encode(), 401)
        else:
            request = json.loads(body)
            data = self.owner.answer(request["query"], request.get("variables") or {})
            self._answer(json.dumps({"data": data}).encode())

    def do_GET(self) -> None:
        self.owner.requests.append(self.path)
        kind, *parts = unquote(self.path).strip("/").split("/")
        if kind == "manifest":  # a signed URL of the object storage
            self._answer(json.dumps(self.owner.manifest(parts[0])).encode())
        elif kind == "artifactsV2" and self._is_known():
            if self.owner.stalled is not None:
                self.owner.stalled.wait()
            content = self.owner.files(parts[4])[parts[-1]]
            self._answer(self.owner.damaged.get(parts[-1], content), kind="application/octet-stream")
        else:
            self._answer(b"", 401)

    def _is_known(self) -> bool:
        return self.headers.get("Authorization") == f"Basic {base64.b64encode(f'api:{KEY}'.encode()).decode()}"
