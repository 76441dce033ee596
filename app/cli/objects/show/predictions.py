"""How well a network's times are known on each GPU type, as a table that fits into 80 columns."""

from collections.abc import Sequence

from app.cli.common.client import Document, number, text
from app.cli.common.output import (
    BAD,
    FAINT,
    GOOD,
    WARN,
    Cells,
    ColouredCell,
    bad,
    faint,
    show_line,
    show_table,
    time_text,
)

INDENT = "    "
# What was not measured on this type deserves a second look.
PROVENANCE_STYLES = {"measured": "", "scaled": WARN, "estimated": WARN}
HEADINGS = (
    INDENT + "gpu type",
    "known as",
    "technique",
    ">error",
    ">samples",
    ">served",
    ">off",
)


def show_predictions(predictions: Sequence[Document]) -> None:
    """Per GPU type: where its times come from, the fit and its held-out error, and what serving says of them."""
    show_line(f"{INDENT[:-2]}predictions:")
    show_table(HEADINGS, [prediction_row(entry) for entry in predictions])
    for entry in predictions:
        # A table's cell cannot say since when, and what is done about it.
        if entry.get("alarm_since"):
            since = time_text(entry["alarm_since"])
            band = percent(number(entry, "band"))
            show_line(
                bad(
                    f"{INDENT}{text(entry, 'gpu_type')}: off by more than {band} since {since}; plans leave room"
                )
            )


def prediction_row(entry: Document) -> Cells:
    """`served`: learned true over stated time; `off`: how far the corrected times were off in the last half minute."""
    technique = text(entry, "technique")
    correction = number(entry, "correction")
    provenance = text(entry, "provenance")
    style = FAINT if correction is None else BAD if entry.get("alarm_since") else GOOD
    return (
        INDENT + text(entry, "gpu_type"),
        ColouredCell(text=provenance, style=PROVENANCE_STYLES.get(provenance, "")),
        technique or faint("-"),
        percent(number(entry, "cross_validated_error")),
        str(int(number(entry, "samples") or 0)),
        ColouredCell(
            text="-" if correction is None else f"× {correction:.2f}", style=style
        ),
        ColouredCell(text=percent(number(entry, "error")), style=style),
    )


def percent(share: float | None) -> str:
    """`2.1 %`."""
    return "-" if share is None else f"{100 * share:.1f} %"
