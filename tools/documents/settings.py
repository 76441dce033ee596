"""docs/settings.md from the settings themselves; a test keeps the file up to date.

Run: `python -m tools.documents.settings`.
"""

from pathlib import Path
from typing import get_args

from pydantic.fields import FieldInfo

from app.base.settings import Settings
from app.cli.common.context import (
    DEFAULT_URL,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    URL_VARIABLE,
)
from app.cli.operation.config import variable

TARGET = Path(__file__).parents[2] / "docs" / "settings.md"

HEAD = f"""# Settings

Generated from `app/base/settings.py` by `python -m tools.documents.settings`; do not edit.

Settings say where a process runs and are read once, at its start. A flag of the command wins over the environment
variable, the variable over the default. `plimsoll config show` prints what is in force and where it comes from. How the
loop decides (policy, mode, period, target attainment, budgets) is no setting but a versioned Policy object, changed by
`plimsoll apply` and recorded in every plan.

## Commands that call the API

| variable | default | meaning |
|---|---|---|
| `{URL_VARIABLE}` | `{DEFAULT_URL}` | Address of the control plane |
| `{TOKEN_VARIABLE}` | – | Token; `plimsoll-agent` reads files alone |
| `{TOKEN_FILE_VARIABLE}` | – | File with the token; without it the one that `plimsoll token create --save` left |

## Control plane: `up`, `serve`, `db`, `token create --local`

| variable | default | meaning |
|---|---|---|
"""

TAIL = """
A password does not belong into `PLIMSOLL_DATABASE_URL`: name the user there, and let libpq find the password by
`PGPASSFILE`.
"""


def document() -> str:
    """The text of docs/settings.md."""
    rows = [
        f"| `{variable(name)}` | {_default(field)} | {field.description}{_range(field)} |"
        for name, field in Settings.model_fields.items()
    ]
    return HEAD + "\n".join(rows) + "\n" + TAIL


def _default(field: FieldInfo) -> str:
    return "–" if field.default is None else f"`{field.default}`"


def _range(field: FieldInfo) -> str:
    """What else the value may be, where it is limited."""
    if words := [
        str(word) for word in get_args(field.annotation) if isinstance(word, str)
    ]:
        return f" ({', '.join(words)})"
    kinds = (("gt", "above"), ("ge", "at least"), ("lt", "below"), ("le", "at most"))
    limits = [
        f"{label} {getattr(limit, kind)}"
        for kind, label in kinds
        for limit in field.metadata
        if hasattr(limit, kind)
    ]
    return f" ({', '.join(limits)})" if limits else ""


def main() -> None:
    """Write the file."""
    TARGET.write_text(document(), encoding="utf-8")


if __name__ == "__main__":
    main()
