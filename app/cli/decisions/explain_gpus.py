"""How an explanation shows GPUs: what each kind runs, earns, and could run instead."""

from collections.abc import Sequence

from app.cli.common.client import Document, documents, number, text
from app.cli.common.output import (
    Cells,
    amount,
    bold,
    count,
    faint,
    plain,
    show_line,
    show_table,
    usd,
    warn,
)

RULES = {
    "slo": "SLO",
    "sm": "SM percent",
    "memory": "memory",
    "power": "power cap",
    "replicas_per_gpu": "replicas per GPU",
    "stock": "stock",
    "min_replicas": "min_replicas",
    "max_replicas": "max_replicas",
}

CHANGES = {
    "gpu_type": "other GPU type",
    "clock": "other clock",
    "share": "other SM % or batch",
    "partner": "other neighbour",
    "more": "one replica more",
    "fewer": "one replica fewer",
}

_MIN_LOSS_USD, _MIN_LOSS_WEIGHT = 5e-5, 0.05
"""Smaller losses would be shown as zero."""


_MIB_PER_GIB = 1024.0


def priced(value: float | None, unit: str, digits: int = 4) -> str:
    """An amount in the unit of the prices."""
    if value is None:
        return "-"
    return (
        f"{usd(value, digits)}/h"
        if unit == "usd_per_hour"
        else f"{amount(value)} weighted rps"
    )


def show_gpu_types(types: Sequence[Document], unit: str) -> None:
    if not types:
        return
    show_line(bold("\nGPU types"))
    headings = [
        "GPU type",
        ">used",
        ">of",
        ">price/h",
    ]
    rows: list[Cells] = []
    for entry in types:
        worth = number(entry, "worth_of_one_more")
        words = "-" if worth is None else priced(worth, unit) if worth else "nothing"
        there = number(entry, "count")
        rows.append(
            (
                text(entry, "gpu_type"),
                plain(entry.get("used")),
                "any" if there is None else f"{there:g}",
                usd(number(entry, "price_usd_per_hour"), 3),
                words,
            )
        )
    one_more = (
        "one more saves at most"
        if unit != "weighted_rps"
        else "one more serves at most"
    )
    show_table([*headings, f">{one_more}"], rows)


def show_gpus(gpus: Sequence[Document], unit: str, left_out: int) -> None:
    if not gpus:
        return
    show_line(bold("\nWhy the GPUs run what they run"))
    for gpu in gpus:
        _show_gpu(gpu, unit)
    if left_out:
        show_line(faint(f"\n{count(left_out, 'kind')} of GPUs that cost less left out"))


def _show_gpu(gpu: Document, unit: str) -> None:
    price, stock = number(gpu, "price") or 0.0, number(gpu, "stock_price") or 0.0
    loss = number(gpu, "loss") or 0.0
    earns = f", earns {priced(price + stock - loss, unit)}"
    if unit == "usd_per_hour":
        costs = f"costs {usd(price)}/h" + (
            f", is scarce ({priced(stock, unit)} more)" if stock > 0.0 else ""
        )
    else:
        costs = f"forgoes {priced(stock, unit)} elsewhere"
    title = f"\n{plain(gpu.get('count'))} × {text(gpu, 'gpu_type')} at {plain(gpu.get('clock_mhz'))} MHz"
    show_line(bold(title), f"  each {costs}{earns}")
    if _shown_loss(loss, unit):
        show_line(
            warn(f"  {priced(loss, unit)} less than it costs: whole GPUs do not divide")
        )
    full = [
        RULES[text(use, "rule")]
        for use in documents(gpu.get("uses"))
        if use.get("is_full")
    ]
    uses = ", ".join(_use(use) for use in documents(gpu.get("uses")))
    show_line(f"  uses {uses}")
    if full:
        show_line(f"  full: {', '.join(full)}")
    rows = [
        (
            f"  {text(each, 'service')}",
            plain(each.get("sm_percent")),
            plain(each.get("batch")),
            amount(number(each, "arrival_rate_rps")),
            amount(number(each, "capacity_rps")),
            priced(number(each, "earns"), unit),
        )
        for each in documents(gpu.get("replicas"))
    ]
    titles = ("sm %", "batch", "rps", "can take", "earns")
    show_table(["  runs", *(f">{title}" for title in titles)], rows)
    _show_alternatives(documents(gpu.get("alternatives")), unit)


def _use(use: Document) -> str:
    rule, used, limit = (
        text(use, "rule"),
        number(use, "used") or 0.0,
        number(use, "limit") or 0.0,
    )
    if rule == "sm":
        return f"{used:g} % of the SMs"
    if rule == "memory":
        return f"{used / _MIB_PER_GIB:.1f} of {limit / _MIB_PER_GIB:.1f} GiB"
    return f"{used:.0f} of {limit:.0f} {'W' if rule == 'power' else 'replicas'}"


def _show_alternatives(alternatives: Sequence[Document], unit: str) -> None:
    if not alternatives:
        return
    rows = [
        (
            f"  {CHANGES[text(each, 'change')]}",
            _dearer(number(each, "loss") or 0.0, unit),
            _pattern(each),
        )
        for each in alternatives
    ]
    show_table(["  instead", ">would lose", "running"], rows)


def _dearer(loss: float, unit: str) -> str:
    return priced(loss, unit) if _shown_loss(loss, unit) else "nothing"


def _shown_loss(loss: float, unit: str) -> bool:
    return loss >= (_MIN_LOSS_USD if unit == "usd_per_hour" else _MIN_LOSS_WEIGHT)


def _pattern(alternative: Document) -> str:
    replicas = documents(alternative.get("replicas"))
    runs = " + ".join(
        f"{text(each, 'service')} {plain(each.get('sm_percent'))} % b{plain(each.get('batch'))}"
        for each in replicas
    )
    return f"{text(alternative, 'gpu_type')} {plain(alternative.get('clock_mhz'))} MHz: {runs}"
