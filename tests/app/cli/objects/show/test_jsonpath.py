"""kubectl's templates: what they print, and what is refused."""

import pytest
import typer

from app.cli.objects.show.jsonpath import MAX_LENGTH, parse_jsonpath
from tests.app.cli.fake_api import FakeApi, service
from tests.app.runner import cli

DOCUMENT: dict[str, object] = {
    "kind": "List",
    "items": [
        {
            "kind": "None",
            "metadata": {
                "name": "127.0.0.1",
                "labels": {"kubernetes.io/hostname": "127.0.0.1"},
            },
            "status": {
                "capacity": {"cpu": "4"},
                "addresses": [{"type": "LegacyHostIP", "address": "127.0.0.1"}],
            },
        },
        {
            "kind": "None",
            "metadata": {"name": "127.0.0.2"},
            "status": {
                "capacity": {"cpu": "8"},
                "addresses": [
                    {"type": "LegacyHostIP", "address": "127.0.0.2"},
                    {"type": "another", "address": "127.0.0.3"},
                ],
            },
        },
    ],
    "users": [
        {"name": "myself", "user": {}},
        {"name": "e2e", "user": {"username": "admin", "password": "secret"}},
    ],
    "figures": {"rate": 2.5, "count": 3, "is_on": True, "one": 1, "none": None},
    "odd": {"a.b": "dotted", "it's": "quoted"},
}
"""The first part is the document on which kubectl's own documentation shows its templates."""


@pytest.mark.parametrize(
    ("template", "printed"),
    [
        ("{.kind}", "List"),
        ("{$.kind}", "List"),
        ("{kind}", "List"),
        (".kind", "List"),
        ("{@}", None),
        ("the object: {.kind}!", "the object: List!"),
        ("{.items[*].metadata.name}", "127.0.0.1 127.0.0.2"),
        ("{.items[0].metadata['name']}", "127.0.0.1"),
        ("{.items[-1].metadata.name}", "127.0.0.2"),
        ("{.items[0,1].metadata.name}", "127.0.0.1 127.0.0.2"),
        ("{.items[1:].metadata.name}", "127.0.0.2"),
        ("{.users[0:1].name}", "myself"),
        ("{.users[*]['name','user']}", 'myself {} e2e {"username": "admin", "password": "secret"}'),
        ('{.users[?(@.name=="e2e")].user.password}', "secret"),
        ("{.users[?(@.user.password)].name}", "e2e"),
        ('{.items[*].status.addresses[?(@.type != "another")].address}', "127.0.0.1 127.0.0.2"),
        ("{..capacity.cpu}", "4 8"),
        ("{..[0].address}", "127.0.0.1 127.0.0.2"),
        (
            r"""{range .items[*]}[{.metadata.name}, {.status.capacity}] {end}""",
            '[127.0.0.1, {"cpu": "4"}] [127.0.0.2, {"cpu": "8"}] ',
        ),
        (
            r"""{range .items[*]}{.metadata.name}{"\t"}{.status.capacity.cpu}{'\n'}{end}""",
            "127.0.0.1\t4\n127.0.0.2\t8\n",
        ),
        (
            "{range .items[*]}{range .status.addresses[*]}<{.address}>{end};{end}",
            "<127.0.0.1>;<127.0.0.2><127.0.0.3>;",
        ),
        (r"{.items[0].metadata.labels.kubernetes\.io/hostname}", "127.0.0.1"),
        (r"{.odd.a\.b} {.odd['a.b']} {.odd['it\'s']}", "dotted dotted quoted"),
        ("{.figures.rate} {.figures.count} {.figures.is_on}", "2.5 3 true"),
        ("{.figures.none}|{.absent.at.all}|{.kind.of}|{.items.name}|{.items[7]}", "||||"),
        ("{.figures.*}", "2.5 3 true 1 "),
        ("{.figures[?(@ >= 2.5)]}", "2.5 3"),
        ("{.figures[?(@ == 1)]}", "1"),
        ('{.figures[?(@ < "z")]}', ""),
    ],
)  # fmt: skip
def test_a_template_prints_what_kubectl_prints(
    template: str, printed: str | None
) -> None:
    rendered = parse_jsonpath(template).render(DOCUMENT)
    assert rendered == printed or (printed is None and '"kind": "List"' in rendered)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{.items[0}", "bracket is not closed"),
        ("{.items[]}", "cannot be read"),
        ("{.items[name]}", "not an index, slice, filter or quoted key"),
        ("{.items['a'1]}", "cannot be read"),
        ("{.items[?(.x)]}", "is not a filter"),
        ("{.items[?(@.x==y)]}", "neither a number nor a quoted text"),
        ("{.kind", "brace is not closed"),
        ("kind}}{.kind}", "not opened"),
        ("{}", "path is empty"),
        ("{.a b}", "cannot be parsed from ' b' on"),
        ("{range .items[*]}{.kind}", "has no {end}"),
        ("{.kind}{end}", "without its {range}"),
        ("{range .a}" * 10 + "{end}" * 10, "more than 8 deep"),
        ("{." + "a" * MAX_LENGTH + "}", f"at most {MAX_LENGTH}"),
    ],
)
def test_what_cannot_be_read_is_refused(template: str, words: str) -> None:
    with pytest.raises(typer.BadParameter, match="jsonpath: ") as caught:
        parse_jsonpath(template)
    assert words in str(caught.value)


def test_get_prints_a_template_of_one_object_and_of_a_list() -> None:
    api = FakeApi(
        objects={"services/chat": service(), "services/photo": service("photo")}
    )
    ready = "jsonpath={.status.conditions[?(@.type=='Ready')].reason}"
    assert cli("get service/chat -o", ready, api=api).out == "Serving"
    names = "jsonpath={.items[*].metadata.name}"
    assert cli("get services -o", names, api=api).out == "chat photo"
