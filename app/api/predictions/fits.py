"""Samples and fits: measurements come in, techniques are chosen, and operating points are made from them."""

import asyncio
from dataclasses import asdict
from functools import partial
from math import isnan
from typing import Annotated

from fastapi import Path, Query
from pydantic import AwareDatetime

from app.api.http.answers import ACT, LIST, READ, problems
from app.api.http.auth import Admin, Viewer
from app.api.http.body import LargeBodyRoute, resource_router
from app.api.http.known_names import check_gpu_types, check_known
from app.api.http.pages import Paging
from app.api.http.parts import Context
from app.api.http.views import Page
from app.api.predictions.fit_views import (
    MAX_CURVES,
    MAX_MEASURED,
    CurvesView,
    CurveView,
    FitDocument,
    FitView,
    MeasuredView,
    RefitView,
    SampleIn,
    SamplesAdded,
    SamplesRemoved,
    SamplesRequest,
    SettingView,
    VerdictView,
)
from app.base.errors import InvalidRequest
from app.catalogue.catalogue import load_layers
from app.db.base.transaction import Connection
from app.db.fleet import gpu_types
from app.db.predictions import fits, profiles, samples
from app.db.predictions.refits import refit
from app.learn.refit import LIMIT_S, run_in_process, run_refit
from app.manifests.parts import TypeName
from app.measurements.curves import GroupCurves, curves_of
from app.store.store import SERVED, SampleRow
from solvers.predict.data.fit import Fits
from solvers.predict.data.fit_json import fit_to_document
from solvers.predict.data.samples import Group, Neighbour

router = resource_router("fits", route_class=LargeBodyRoute)


@router.post("/networks/{name}/samples", responses=ACT | problems(415))
async def add_samples(
    context: Admin, name: TypeName, sent: SamplesRequest
) -> SamplesAdded:
    """Keep measurements of a network; those that are there already change nothing."""
    # Otherwise a measurement could pass for what was served, of which only agents know.
    if sent.source == SERVED:
        raise InvalidRequest(
            f"{SERVED!r} is reserved for what the agents report", field="source"
        )
    rows = [_row(name, sent.source, sample) for sample in sent.samples]
    async with context.transaction() as connection:
        await profiles.get_network(connection, name)
        await _check_names(context, connection, sent)
        added = await samples.add(connection, rows, at=context.now())
        # Sending a file again must not fill the audit.
        if added:
            await context.audit(
                connection,
                "SamplesAdded",
                f"network/{name}",
                reason=sent.source,
                after={"added": added},
            )
    return SamplesAdded(received=len(rows), added=added)


@router.delete("/networks/{name}/samples", responses=READ)
async def remove_samples(
    context: Admin,
    name: TypeName,
    gpu_type: Annotated[
        TypeName | None, Query(description="Only those on this GPU type")
    ] = None,
    source: Annotated[
        str | None, Query(max_length=200, description="Only those of this source")
    ] = None,
    before: Annotated[
        AwareDatetime | None, Query(description="Only those received before")
    ] = None,
) -> SamplesRemoved:
    """Forget measurements that were wrong, or of a network that has changed since; the next fit does without them."""
    async with context.transaction() as connection:
        await profiles.get_network(connection, name)
        removed = await samples.remove(
            connection, name, gpu_type=gpu_type, source=source, before=before
        )
        if removed:
            await context.audit(
                connection,
                "SamplesRemoved",
                f"network/{name}",
                reason=source or "",
                after={"removed": removed},
            )
    return SamplesRemoved(removed=removed)


@router.post("/networks/{name}/fit", responses=problems(400, 404, 409))
async def fit_network(
    context: Admin,
    name: TypeName,
    apply: Annotated[
        bool,
        Query(description="Use the new operating points where they are no worse"),
    ] = False,
) -> RefitView:
    """Fit the network's samples again, now; one fit at a time, else 429."""
    async with context.parts.fit_turn.taken(context.caller.root):
        outcome = await refit(
            context.parts.engine,
            # In a process of its own, since fitting would keep this one from answering agents.
            partial(run_in_process, run_refit, limit_s=LIMIT_S),
            name,
            layers=load_layers(),
            actor=context.actor,
            now=context.now,
            apply=apply,
        )
    return RefitView(
        network=name,
        fits=[FitView.model_validate(row) for row in outcome.fits],
        verdicts=[VerdictView.model_validate(verdict) for verdict in outcome.verdicts],
    )


@router.get("/networks/{name}/fits", responses=LIST | READ)
async def list_fits(
    context: Viewer,
    name: TypeName,
    paging: Paging,
    current: Annotated[bool, Query(description="Only those in force")] = True,
) -> Page[FitView]:
    """Fits of a network, newest first, without their coefficients."""
    async with context.transaction() as connection:
        await profiles.get_network(connection, name)
        rows = await fits.list_rows(
            connection,
            network=name,
            current_only=current,
            before=paging.after_number,
            limit=paging.fetch,
        )
    return paging.page(rows, view=FitView.model_validate, key=lambda row: row.id)


@router.get("/networks/{name}/fits/curves", responses=READ)
async def get_curves(
    context: Viewer,
    name: TypeName,
    gpu_type: Annotated[TypeName, Query(description="On which GPU type")],
) -> CurvesView:
    """How the fit in force of the network's latency meets its newest samples, as `plimsoll fit --plot` draws it."""
    async with context.transaction() as connection:
        await profiles.get_network(connection, name)
        await check_gpu_types(context, connection, [gpu_type], field="gpu_type")
        row, fit = await fits.find_current(
            connection, Group(name, gpu_type), "latency_ms"
        ) or (None, None)
        measured = await samples.load(
            connection,
            network=name,
            gpu_type=gpu_type,
            # Samples of what was served come on top, a quarter as many.
            own_limit=MAX_MEASURED * 4 // 5,
            other_limit=0,
        )
        counts = await samples.count(connection, network=name)
    view = CurvesView(
        network=name,
        gpu_type=gpu_type,
        fit=None if row is None else FitView.model_validate(row),
        setting=None,
        curves=[],
        measured=[],
        samples=sum(each.samples for each in counts if each.gpu_type == gpu_type),
    )
    # Without samples there is no range over which a curve could be drawn.
    if not len(measured):
        return view
    in_force = Fits(fits=() if fit is None else (fit,))
    found = await asyncio.to_thread(
        curves_of, Group(name, gpu_type), measured, in_force, max_curves=MAX_CURVES
    )
    return view.model_copy(update=_drawn(found))


@router.get("/fits/{fit_id}", responses=READ)
async def get_fit(
    context: Viewer, fit_id: Annotated[int, Path(ge=1, le=2**53)]
) -> FitDocument:
    """One version of a fit with its coefficients."""
    async with context.transaction() as connection:
        row, fit = await fits.get(connection, fit_id)
    view = FitView.model_validate(row)
    return FitDocument.model_validate(
        {**view.model_dump(), "document": fit_to_document(fit)}
    )


def _drawn(found: GroupCurves) -> dict[str, object]:
    setting = found.setting
    known = {
        # JSON has no NaN.
        name: None if isnan(value) else value
        for name, value in asdict(setting).items()
    }
    return {
        "setting": SettingView.model_validate(known),
        "curves": [CurveView.model_validate(curve) for curve in found.curves],
        "measured": [MeasuredView.model_validate(each) for each in found.measured],
    }


def _row(network: str, source: str, sample: SampleIn) -> SampleRow:
    # In one order, so that the same conditions are the same sample.
    neighbours = sorted(
        Neighbour(entry.network, entry.batch, entry.sm_percent)
        for entry in sample.neighbours
    )
    return SampleRow(
        **sample.model_dump(exclude={"neighbours"}),
        network=network,
        source=source,
        neighbours=tuple(neighbours),
    )


async def _check_names(
    context: Context, connection: Connection, sent: SamplesRequest
) -> None:
    types = [
        row.gpu_type.name
        for row in await gpu_types.list_rows(connection, context.now())
    ]
    for number, sample in enumerate(sent.samples):
        check_known(
            [sample.gpu_type],
            types,
            what="GPU type",
            field=f"samples.{number}.gpu_type",
        )
