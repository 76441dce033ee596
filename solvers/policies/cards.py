"""Cards: what every policy is, where it comes from, what it needs and when to choose it, as people are told.

Each stands where its policy is registered (`solvers.types.policy_spec`); a test keeps them complete.
"""

from solvers.policies.registry import policies, spec_of
from solvers.types.policy_spec import Card


def card(name: str) -> Card:
    """The card of the policy of that name. Raises UnknownPolicy, which lists the names that exist."""
    return spec_of(name).card


def cards() -> tuple[Card, ...]:
    """The cards of all registered policies: the default first, then the others by name."""
    # False sorts before True: what is ours, the default, comes first.
    known = map(card, policies())
    return tuple(sorted(known, key=lambda card: (card.source != "ours", card.name)))
