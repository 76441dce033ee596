"""The campaign's judge: what it must tell of a fleet that looks well."""

from bench.campaign import oracle
from bench.campaign.deployment.journal import Entry


def test_a_node_that_follows_no_more_is_told() -> None:
    told = {
        "follows": (
            Entry(kind="obeyed", at_s=1.0, generation=3),
            Entry(kind="started", at_s=2.0, generation=4),
        ),
        "stopped": (Entry(kind="obeyed", at_s=1.0, generation=3),),
        "nothing given": (),
    }
    given = {"follows": 4, "stopped": 4, "silent": 1}
    assert oracle._behind(given, told) == {
        "silent": "silent stopped at generation 0 and was given 1",
        "stopped": "stopped stopped at generation 3 and was given 4",
    }
