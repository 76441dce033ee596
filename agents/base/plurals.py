"""Numbers of things, with the noun in singular or plural."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 seed`, `2,000 seeds`, `3 policies`; `plural` where it is made otherwise."""
    if number == 1:
        return f"1 {noun}"
    regular = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {plural or regular}"
