"""Cards: what every policy is, where it comes from, what it needs and when to choose it, as people are told.

Each stands where its policy is registered (`solvers.types.policy_spec`); a test keeps them complete.
"""

from collections.abc import Collection

from solvers.policies.registry import main_policies, policies, spec_of
from solvers.types.policy_spec import Card


def card(name: str) -> Card:
    """The card of the policy of that name. Raises UnknownPolicy, which lists the names that exist."""
    return spec_of(name).card


def cards() -> tuple[Card, ...]:
    """The cards of all registered policies: the default first, then the main ones, then baselines; each by name."""
    main = main_policies()

    # False sorts before True: what is ours, the default, comes first.
    def place(one: Card) -> tuple[bool, bool, str]:
        return one.source != "ours", one.name not in main, one.name

    return tuple(sorted(map(card, policies()), key=place))


def in_order(names: Collection[str]) -> tuple[str, ...]:
    """These policies in the order in which people are shown them, that of `cards`."""
    return tuple(each.name for each in cards() if each.name in names)
