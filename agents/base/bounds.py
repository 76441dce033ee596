"""Numbers that come from programs which are not ours, held to the bounds of the wire contract.

within(value, Amount)     the value, or 0 where the contract refuses it
"""

import msgspec


def within(value: float, kind: object) -> float:
    """The value where it lies within a type of `agents.base.protocol`, else 0, which says on the wire: nothing known.

    One number out of its bounds would have the whole observation refused.
    """
    # Not cut to the bound: whoever tells such a number has not counted, and the bound would be as wrong.
    try:
        found: float = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return 0.0
    return found
