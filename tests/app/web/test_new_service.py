"""YAML that people paste into the page *New service*."""

from typing import Any, cast

import pytest

from app.web.new_service import parse


def test_every_field_has_its_line_by_json_pointer() -> None:
    documents, complaints = parse(
        "kind: Service\nmetadata:\n  labels: {a/b: c}\nspec:\n  variants:\n  - network: x\n"
    )
    assert complaints == []
    (document,) = cast("list[dict[str, Any]]", documents)
    assert document["value"]["spec"] == {"variants": [{"network": "x"}]}
    lines = document["lines"]
    assert (
        lines[""],
        lines["/kind"],
        lines["/metadata/labels/a~1b"],
        lines["/spec/variants/0/network"],
    ) == (
        1,
        1,
        3,
        6,
    )


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: [1,\nc: 2", 3, "not YAML"),
        ("a: 1\na: 2", 2, "is given twice"),
        ("x: &x {}\ny: 1\nz: *x", 3, "aliases are not supported"),
        ("[" * 40 + "]" * 40, 1, "too deeply"),
        ("- " * 5000 + "x", 1, "too deeply"),
        ("a: \x8d", 1, "special characters are not allowed"),
    ],
)
def test_what_is_no_plain_yaml_is_told_with_its_line(
    text: str, line: int, words: str
) -> None:
    _, complaints = parse(text)
    (complaint,) = cast("list[dict[str, Any]]", complaints)
    assert complaint["line"] == line
    assert words in complaint["problem"]


def test_an_empty_text_has_no_document() -> None:
    assert parse("") == ([], [])
    assert parse("---\n# nothing\n") == ([], [])
