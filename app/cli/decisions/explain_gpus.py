"""How an explanation shows GPUs: what each kind runs, earns, and could run instead."""

from collections.abc import Sequence

from agents.base.plurals import counted
from app.cli.common.client import Document, documents, number, text
from app.cli.common.output import (
    Cells,
    amount,
    bold,
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
    verb = "serves" if unit == "weighted_rps" else "saves"
    show_table(
        ["GPU type", ">used", ">of", ">price/h", f">one more {verb} at most"],
        [_gpu_type_row(entry, unit) for entry in types],
    )


def _gpu_type_row(entry: Document, unit: str) -> Cells:
    stock = number(entry, "count")
    return (
        text(entry, "gpu_type"),
        plain(entry.get("used")),
        # Without a count the type is rented by need.
        "any" if stock is None else f"{stock:g}",
        usd(number(entry, "price_usd_per_hour"), 3),
        _worth(number(entry, "worth_of_one_more"), unit),
    )


def _worth(value: float | None, unit: str) -> str:
    """None: nothing is priced. 0: some of the type are unused, so that another one would be, too."""
    if value is None:
        return "-"
    return priced(value, unit) if value else "nothing"


def show_gpus(gpus: Sequence[Document], unit: str, left_out: int) -> None:
    if not gpus:
        return
    show_line(bold("\nWhy the GPUs run what they run"))
    for gpu in gpus:
        _show_gpu(gpu, unit)
    if left_out:
        show_line(
            faint(f"\n{counted(left_out, 'kind')} of GPUs that cost less are left out")
        )


def _show_gpu(gpu: Document, unit: str) -> None:
    title = f"\n{plain(gpu.get('count'))} × {text(gpu, 'gpu_type')} at {plain(gpu.get('clock_mhz'))} MHz"
    show_line(bold(title), f"  each {_costs_and_earnings(gpu, unit)}")
    loss = number(gpu, "loss") or 0.0
    if _is_shown(loss, unit):
        show_line(
            warn(f"  {priced(loss, unit)} less than it costs: GPUs cannot be divided")
        )
    uses = documents(gpu, "uses")
    show_line(f"  uses {', '.join(map(_use, uses))}")
    full = [RULES[text(use, "rule")] for use in uses if use.get("is_full")]
    if full:
        show_line(f"  full: {', '.join(full)}")
    show_table(
        ["  runs", ">sm %", ">batch", ">rps", ">can take", ">earns"],
        [_replica_row(each, unit) for each in documents(gpu, "replicas")],
    )
    _show_alternatives(documents(gpu, "alternatives"), unit)


def _costs_and_earnings(gpu: Document, unit: str) -> str:
    price = number(gpu, "price") or 0.0
    stock = number(gpu, "stock_price") or 0.0
    # In a basis of the relaxation a used GPU earns just what it costs; an integer solution falls short by the loss.
    earnings = price + stock - (number(gpu, "loss") or 0.0)
    if unit == "usd_per_hour":
        costs = f"costs {usd(price)}/h"
        costs += f", is scarce ({priced(stock, unit)} more)" if stock > 0.0 else ""
    else:
        # Where goodput is maximised the fleet is paid for anyway: a GPU costs what it could serve elsewhere.
        costs = f"forgoes {priced(stock, unit)} elsewhere"
    return f"{costs}, earns {priced(earnings, unit)}"


def _replica_row(each: Document, unit: str) -> Cells:
    return (
        f"  {text(each, 'service')}",
        plain(each.get("sm_percent")),
        plain(each.get("batch")),
        amount(number(each, "arrival_rate_rps")),
        amount(number(each, "capacity_rps")),
        priced(number(each, "earns"), unit),
    )


def _use(use: Document) -> str:
    rule = text(use, "rule")
    used = number(use, "used") or 0.0
    limit = number(use, "limit") or 0.0
    # The limit of the SMs is always 100.
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
            # A change that loses nothing that four decimals show is as good as what runs.
            _loss_text(number(each, "loss") or 0.0, unit),
            _pattern(each),
        )
        for each in alternatives
    ]
    show_table(["  instead", ">would lose", "running"], rows)


def _loss_text(loss: float, unit: str) -> str:
    return priced(loss, unit) if _is_shown(loss, unit) else "nothing"


def _is_shown(loss: float, unit: str) -> bool:
    return loss >= (_MIN_LOSS_USD if unit == "usd_per_hour" else _MIN_LOSS_WEIGHT)


def _pattern(alternative: Document) -> str:
    replicas = documents(alternative, "replicas")
    runs = " + ".join(
        f"{text(each, 'service')} {plain(each.get('sm_percent'))} % b{plain(each.get('batch'))}"
        for each in replicas
    )
    return f"{text(alternative, 'gpu_type')} {plain(alternative.get('clock_mhz'))} MHz: {runs}"
