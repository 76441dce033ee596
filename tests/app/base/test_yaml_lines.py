"""Texts that are no YAML, or more than can be read, are told with their lines, for all who send them."""

import pytest

from app.base.yaml_lines import (
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_REPEATED,
    line_of_alias,
    read_documents,
)


def told(text: str) -> tuple[list[object], list[tuple[int, str]]]:
    complaints: list[tuple[int, str]] = []

    def complain(line: int, field: str, problem: str) -> None:
        complaints.append((line, f"{field}: {problem}" if field else problem))

    return [document.value for document in read_documents(text, complain)], complaints


@pytest.mark.parametrize(
    "value",
    [
        "!!bool maybe",
        "!!int ''",
        "!!float ''",
        "!!timestamp soon",
        "1:" + "59:" * 200 + "00.5",
        "2026-13-40",
    ],
)
def test_a_value_that_is_not_what_its_tag_says_is_told(value: str) -> None:
    values, ((line, problem),) = told(f"\nname: {value}\n")
    assert (values, line) == ([], 2)
    assert problem.startswith("not YAML: ")


@pytest.mark.parametrize(
    "number",
    ["9" * (MAX_DIGITS + 1), "0x" + "f" * MAX_DIGITS, "1:" * MAX_DIGITS + "30"],
)
def test_a_number_that_cannot_be_written_down_is_told(number: str) -> None:
    assert told(f"a: 1\nb: {number}") == (
        [],
        [(2, f"not YAML: a number of {len(number):,} digits")],
    )


@pytest.mark.parametrize("depth", [MAX_DEPTH + 2, 250, 1000])
def test_what_is_nested_too_deeply_for_those_who_walk_through_it_is_told(
    depth: int,
) -> None:
    values, ((line, problem),) = told("[" * depth + "]" * depth)
    assert (values, line) == ([], 1)
    assert "nested too deeply" in problem
    values, complaints = told("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert (len(values), complaints) == (1, [])


def test_an_alias_is_found_by_its_line() -> None:
    assert line_of_alias("a: &x [1]\nb: *x\n") == 2
    assert line_of_alias("a: [1]\n") is None


def test_aliases_are_not_looked_for_below_the_depth_that_is_read() -> None:
    """Each bracket would cost the more the more there are."""
    depth = MAX_DEPTH + 1
    assert line_of_alias("[&x 1, *x, " + "[" * depth) == 1
    assert line_of_alias("[&x 1, " + "[" * depth + "*x") is None


def test_aliases_that_stand_for_too_much_are_refused_before_they_are_unfolded() -> None:
    """Nine in each of nine in each …: 9 ** 9 values in less than 400 characters."""
    laughs = ["a0: &a0 x"]
    laughs += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    assert told("\n".join(laughs)) == (
        [],
        [(1, f"not YAML: its aliases stand for more than {MAX_REPEATED:,} values")],
    )
