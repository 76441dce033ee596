"""Every setting is explained where operators look: docs/settings.md, generated from the settings themselves."""

import re

from app.base.settings import Settings
from tools.documents import settings as settings_document


def test_the_document_is_up_to_date() -> None:
    written = settings_document.TARGET.read_text(encoding="utf-8")
    assert written == settings_document.document(), (
        "run: python -m tools.documents.settings"
    )


def test_every_setting_has_a_sentence_with_its_default() -> None:
    rows = dict(
        re.findall(
            r"^\| `PLIMSOLL_(\w+)` \| .+ \| (.+) \|$",
            settings_document.document(),
            re.MULTILINE,
        )
    )
    assert {name.upper() for name in Settings.model_fields} <= set(rows)
    assert all(len(rows[name.upper()]) > 15 for name in Settings.model_fields)


def test_no_default_is_a_secret() -> None:
    secret = [
        name
        for name, field in Settings.model_fields.items()
        if "Secret" in str(field.annotation)
    ]
    assert secret == ["database_url", "oidc_client_secret"]
    assert all(Settings.model_fields[name].default is None for name in secret)
