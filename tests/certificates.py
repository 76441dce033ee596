"""A certificate authority for tests of TLS, made by openssl with the commands of docs/security.md."""

import subprocess
from pathlib import Path

_NEW_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
_AUTHORITY = f"req -x509 {_NEW_KEY} -subj /CN=ca -days 30 -keyout ca.key -out ca.pem"
_REQUEST = (
    f"req {_NEW_KEY} -subj /CN={{name}} -addext subjectAltName={{names}} "
    "-keyout {name}.key -out {name}.csr"
)
_SIGN = (
    "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -days 30 "
    "-copy_extensions copy -out {name}.pem"
)


class Authority:
    """It keeps its own certificate and all that it signs in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "ca.pem"
        folder.mkdir(parents=True, exist_ok=True)
        self._openssl(_AUTHORITY)

    def sign(self, name: str, names: str) -> tuple[Path, Path]:
        """Certificate and key of `name`, whose other names are as IP:127.0.0.1 or DNS:n1."""
        self._openssl(_REQUEST.format(name=name, names=names))
        self._openssl(_SIGN.format(name=name))
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"

    def _openssl(self, line: str) -> None:
        subprocess.run(
            ["openssl", *line.split()], cwd=self.folder, check=True, capture_output=True
        )
