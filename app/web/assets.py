"""The dashboard's files, in memory, under an address that changes with their content: browsers keep them for good."""

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response

from app.api.http.body import accepts_gzip
from app.base.errors import NotFound

FOLDER = "static"
FOR_GOOD = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class Asset:
    """One file."""

    path: str
    """From the folder on, e.g. `js/fleet.js`."""
    content: bytes

    @property
    def media_type(self) -> str:
        """As browsers want to be told it."""
        return mimetypes.guess_type(self.path)[0] or "text/plain"

    @cached_property
    def gzipped(self) -> bytes:
        """Made when it is first asked for: level 9 of the largest takes a tenth of a second."""
        # Without a time, so that equal content gives equal bytes in every process.
        return gzip.compress(self.content, 9, mtime=0)


class Assets:
    """All files of the dashboard."""

    def __init__(self, folder: Traversable | None = None) -> None:
        """Without `folder`, those that came with the package."""
        found = sorted(
            _walk(folder or files("app.web") / FOLDER, ""), key=lambda asset: asset.path
        )
        self._by_path = {asset.path: asset for asset in found}
        # Over all files at once: a script imports others by relative paths, so that all must be of one version.
        digest = hashlib.sha256(
            b"".join(asset.path.encode() + asset.content for asset in found)
        )
        self.prefix = f"/{FOLDER}/{digest.hexdigest()[:12]}"
        """Where they are; what a script imports by a relative path is below it, too."""

    def answer(self, request: Request, path: str) -> Response:
        """One file. Raises NotFound."""
        asset = self._by_path.get(path)
        if asset is None:
            raise NotFound(f"the dashboard has no file {path!r}")
        # "Vary" keeps a cache from giving a browser that takes no gzip the packed file.
        headers = {
            "Cache-Control": FOR_GOOD,
            "X-Content-Type-Options": "nosniff",
            "Vary": "Accept-Encoding",
        }
        if not accepts_gzip(request):
            return Response(asset.content, media_type=asset.media_type, headers=headers)
        headers["Content-Encoding"] = "gzip"
        return Response(asset.gzipped, media_type=asset.media_type, headers=headers)


def _walk(folder: Traversable, prefix: str) -> list[Asset]:
    found: list[Asset] = []
    for entry in folder.iterdir():
        path = f"{prefix}{entry.name}"
        found += (
            _walk(entry, f"{path}/")
            if entry.is_dir()
            else [Asset(path=path, content=entry.read_bytes())]
        )
    return found
