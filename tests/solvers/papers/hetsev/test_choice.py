"""Why a plan was taken, in words."""

import pytest

from solvers.papers.hetsev.choice import ChoiceKind, describe
from solvers.types.outcome import Reason

FIGURES = {"cost": 10.0, "fresh_cost": 8.126, "waited_s": 12.4, "hold_s": 60.0}
WORDS = {
    ChoiceKind.FRESH: "fresh arrangement",
    ChoiceKind.SERVES_MORE: "fresh arrangement: it serves more than the running one can be changed to",
    ChoiceKind.WOULD_SERVE_LESS: "running arrangement, changed: a fresh one would serve less",
    ChoiceKind.CHANGED: "running arrangement, changed",
    ChoiceKind.CONSOLIDATED: "consolidation: 10.00 USD/h falls to 8.13 USD/h",
    ChoiceKind.CONSOLIDATION_WAITS: "running arrangement, changed; a consolidation to 8.13 USD/h waits, 12 of 60 s",
    ChoiceKind.NO_TIME: "running arrangement, changed; no time was left to think of a fresh one",
}


@pytest.mark.parametrize("kind", ChoiceKind)
def test_every_choice_has_its_words(kind: ChoiceKind) -> None:
    assert describe(Reason(kind=kind, figures=FIGURES)) == WORDS[kind]
