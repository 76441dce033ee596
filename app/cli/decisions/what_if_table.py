"""The table of a what-if's answers, and what is to be said of them."""

from collections.abc import Sequence

from app.cli.common.client import Document, dig, documents, number, text
from app.cli.common.output import (
    Cells,
    ColouredCell,
    amount,
    bad,
    bold,
    faint,
    good,
    show_line,
    show_table,
    usd,
    warn,
)

_NOISE_USD = 5e-5
"""Differences that four decimals do not show."""
_CENT = 0.005


def show_answers(answer: Document) -> None:
    """Print today's answer and the others, ranked, with what they leave open."""
    today = answer.get("today")
    answers = documents(answer, "answers")
    titles = ["what if", ">cost/h", ">difference", ">unserved", ">gap"]
    bought = [dig(one, "added_usd_per_hour") is not None for one in answers]
    if any(bought):
        titles += [">added/h", ">saves per $"]
    show_table(
        [*titles, "gpus"],
        [
            _row(one, is_today=one is today, buys=any(bought))
            for one in (today, *answers)
        ],
    )
    _show_notes(today, answers)


def _show_notes(today: object, answers: Sequence[Document]) -> None:
    for line in _unmeasured(answers):
        show_line(warn(line))
    if any(map(_is_borrowed, answers)):
        show_line(faint("* the plan found for another question, which is better here"))
    if _is_unsure(today, answers):
        show_line(
            warn(
                "Differences smaller than the gaps are not proven; a longer --time-limit narrows the gaps."
            )
        )


def _is_borrowed(answer: object) -> bool:
    return text(answer, "planned_for") != text(answer, "question")


def _row(answer: object, *, is_today: bool, buys: bool) -> Cells:
    """`buys`: whether some answer adds GPUs, and the table has columns for them."""
    name = text(answer, "question") + (" *" if _is_borrowed(answer) else "")
    difference = number(answer, "difference_usd_per_hour") or 0.0
    unserved = number(answer, "unserved_percent") or 0.0
    gap = number(answer, "gap_percent")
    return (
        bold(name) if is_today else name,
        usd(number(answer, "cost_usd_per_hour")),
        "-" if is_today else _signed(difference),
        bad(f"{unserved:.2f} %") if unserved else "-",
        "-" if gap is None else f"{amount(gap, 2)} %",
        *(_bought(answer) if buys else ()),
        _used(dig(answer, "gpus")) or "none",
    )


def _bought(answer: object) -> Cells:
    """The price of the added GPUs, and what each dollar of it saves."""
    saving = number(answer, "saving_per_usd")
    return (
        usd(number(answer, "added_usd_per_hour")),
        "-" if saving is None else _saved(saving),
    )


def _saved(saving: float) -> str | ColouredCell:
    if abs(saving) < _CENT:
        return "nothing"
    return good(usd(saving, 2)) if saving > 0 else bad(f"−{usd(-saving, 2)}")


def _unmeasured(answers: Sequence[Document]) -> list[str]:
    """What would have to be measured before the added GPUs could be used, one line for each network and type."""
    services: dict[tuple[str, str], set[str]] = {}
    for answer in answers:
        for one in documents(answer, "unmeasured"):
            key = text(one, "network"), text(one, "gpu_type")
            services.setdefault(key, set()).add(text(one, "service"))
    return [
        f"{gpu_type}: {network} was never measured there, so {', '.join(sorted(names))} cannot be planned on it; "
        f"`plimsoll profile run --network {network} --gpu-type {gpu_type}` on such a GPU does, or apply a Profile"
        for (network, gpu_type), names in sorted(services.items())
    ]


def _used(gpus: object) -> str:
    """GPUs by type, without the types of which none is used."""
    counts = gpus.items() if isinstance(gpus, dict) else ()
    return ", ".join(f"{count} {name}" for name, count in counts if count)


def _signed(difference: float) -> str | ColouredCell:
    # Rounding would show +$0.0000.
    if abs(difference) < _NOISE_USD:
        return "same"
    return (
        bad(f"+{usd(difference)}") if difference > 0 else good(f"−{usd(-difference)}")
    )


def _is_unsure(today: object, answers: Sequence[Document]) -> bool:
    """Whether some difference is smaller than what is not proven."""
    gap_today = number(today, "gap_percent") or 0.0
    for each in answers:
        gap = max(number(each, "gap_percent") or 0.0, gap_today)
        # Either of the two plans may cost that much less in truth.
        unproven_usd = gap / 100.0 * (number(each, "cost_usd_per_hour") or 0.0)
        if abs(number(each, "difference_usd_per_hour") or 0.0) < unproven_usd:
            return True
    return False
