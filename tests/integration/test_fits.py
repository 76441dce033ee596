"""Samples and fits in the database and over the API: what is sent twice, what is chosen, what is put in force."""

import asyncio
import math
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from app.base.errors import NotFound, Unavailable
from app.catalogue.install import install_catalogue
from app.db import maintenance
from app.db.base.tables import cluster
from app.db.base.transaction import Connection, Engine
from app.db.postgres_store import PostgresStore
from app.db.predictions import fits, health, profiles, samples
from app.db.predictions.profiles import StoredProfile
from app.db.predictions.refits import (
    RETRY_AFTER,
    Attempts,
    RefitOutcome,
    Run,
    load_request,
    refit_waiting,
)
from app.learn.refit import RefitAnswer, RefitRequest, run_refit
from app.store.store import SERVED, Correction, FitHealth, SampleRow
from solvers.predict.data.samples import Group, Neighbour
from solvers.predict.learn.online import ExecutionReading, RowKey, learn, new_fit_state
from solvers.types.problem import OperatingPoint, OperatingPoints
from tests.integration.api_harness import NOW, Api
from tests.integration.fault_harness import with_store
from tests.integration.measured import (
    fit_here,
    let_the_api_fit_here,
    measured,
    run_here,
    true_ms,
)
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

GROUP = Group("resnet50", "T4")
ROW = SampleRow(
    network="resnet50",
    gpu_type="T4",
    batch=4.0,
    sm_percent=50.0,
    latency_ms=12.0,
    source="bench",
)


SAMPLES = "networks/resnet50/samples"


def send(api: Api, factor: float = 1.0, source: str = "bench") -> Any:
    return api.post(
        SAMPLES, {"source": source, "samples": measured(factor)}, token="admin"
    )


def test_samples_are_kept_once_and_come_back_as_they_were(api: Api) -> None:
    beside = (Neighbour("resnet50", 2.0, 10.0), Neighbour("vgg16", 8.0, 30.0))
    measures = {"power_w": 60.0, "memory_mib": 900.0, "l2_util_percent": 30.0}
    rows = [
        ROW,
        replace(ROW, clock_mhz=1590.0),
        replace(ROW, neighbours=beside),
        replace(ROW, measured_at=NOW, **measures),
    ]

    async def work(connection: Connection) -> None:
        for wanted, later_h, added in (([*rows, rows[0]], 0, 4), (rows[::-1], 1, 0)):
            at = NOW + timedelta(hours=later_h)
            assert await samples.add(connection, wanted, at=at) == added
        assert await samples.add(connection, [], at=NOW) == 0
        limits = {"network": "resnet50", "own_limit": 10, "other_limit": 10}
        found = await samples.load(connection, **limits)
        assert found.at.neighbours == tuple(row.neighbours for row in rows)
        assert found.latency_ms.tolist() == [12.0] * 4
        assert found.at.clock_mhz[1] == 1590.0 and np.isnan(found.at.clock_mhz[0])
        kept = {name: getattr(found, name)[3] for name in measures}
        assert kept == measures
        newest = await samples.load(connection, **{**limits, "own_limit": 2})
        assert len(newest) == 2
        (counted,) = await samples.count(connection)
        assert (counted.gpu_type, counted.samples) == ("T4", 4)

    api.on_connection(work)


def test_what_is_served_does_not_crowd_out_what_was_measured(api: Api) -> None:
    async def work(engine: Engine) -> None:
        sent = [replace(ROW, sm_percent=float(share)) for share in range(10, 50)]
        served = [
            replace(ROW, source=SERVED, latency_ms=50.0 + age) for age in range(100)
        ]
        async with engine.begin() as connection:
            await samples.add(connection, sent, at=NOW)
            for age, row in enumerate(served):
                await samples.add(
                    connection, [row], at=NOW + timedelta(days=1, minutes=-age)
                )
            found = await samples.load(
                connection, network="resnet50", own_limit=20, other_limit=0
            )
            assert sorted(found.latency_ms.tolist()) == [12.0] * 20 + [50.0, 51.0, 52.0]
        await maintenance.forget(
            engine, NOW + timedelta(days=2), maintenance.Retention(served_samples=10)
        )
        async with engine.begin() as connection:
            (counted,) = await samples.count(connection)
            assert (counted.samples, counted.newest_at) == (50, NOW + timedelta(days=1))

    api.on_engine(work)


@pytest.mark.parametrize(
    ("network", "like"), [("resnet50", "vgg16"), ("bert-training", "lm-training")]
)
def test_inference_and_training_teach_nothing_to_each_other(
    database: str, network: str, like: str
) -> None:
    async def work(_: PostgresStore, engine: Engine) -> RefitRequest:
        shipped = ("resnet50", "vgg16", "bert-training", "lm-training")
        await install_catalogue(engine, NOW, networks=shipped)
        async with engine.begin() as connection:
            await samples.add(connection, [replace(ROW, network=network)], at=NOW)
            return await load_request(
                connection, network, layers={}, source="test", now=NOW
            )

    request = with_store(database, work)
    assert {entry.network for entry in request.present} == {network}
    assert {entry.network for entry in request.other_profiles} == {like}


def test_samples_over_the_api_are_idempotent_and_bounded(api: Api) -> None:
    assert send(api) == {"received": 20, "added": 20}
    assert send(api) == {"received": 20, "added": 0}
    kinds = "events?subject=network/resnet50&kind=SamplesAdded"
    assert len(api.get(kinds)["items"]) == 1
    one = measured()[0]
    few = {"samples": [one]}
    assert api.status("POST", "networks/nobody/samples", few) == 404
    assert api.status("POST", SAMPLES, few, token="operator") == 403
    pointer, words = api.wrong("POST", SAMPLES, {"samples": [{**one, "gpu_type": "A"}]})
    assert pointer == "/samples/0/gpu_type" and "T4" in words
    odd = {"latency_ms": 0, "batch": 0.5, "sm_percent": 101, "power_w": -1, "extra": 1}
    for field, value in odd.items():
        wrong = {"samples": [{**one, field: value}]}
        assert api.wrong("POST", SAMPLES, wrong)[0] == f"/samples/0/{field}"
    for body in ({"source": SERVED, **few}, {"samples": []}):
        assert api.status("POST", SAMPLES, body) == 422


def test_wrong_samples_can_be_removed_and_a_fit_does_without_them(api: Api) -> None:
    send(api)
    send(api, 9.0, "wrong unit")
    path = f"{SAMPLES}?source=wrong%20unit"
    assert api.status("DELETE", path, token="operator") == 403
    assert api.status("DELETE", "networks/nobody/samples") == 404
    for query, removed in (
        ("&gpu_type=V100", 0),
        ("&before=2020-01-01T00:00:00Z", 0),
        ("", 20),
        ("", 0),
    ):
        assert api.call("DELETE", path + query).json() == {"removed": removed}
    (event,) = api.get("events?kind=SamplesRemoved")["items"]
    assert (event["subject"], event["after"]) == ("network/resnet50", {"removed": 20})
    fit_here(api)
    fitted = api.get("networks/resnet50/fits")["items"]
    counts = {fit["quantity"]: fit["sample_count"] for fit in fitted}
    assert counts["latency_ms"] == 20


def test_a_fit_is_chosen_stored_applied_and_described(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In its own process, however late a busy machine starts it.
    monkeypatch.setattr("app.api.predictions.fits.LIMIT_S", PATIENCE_S)
    send(api)
    (verdict,) = fit_here(api).verdicts
    assert not verdict.applied and "not requested" in verdict.reason
    assert api.get("profiles/resnet50/T4")["status"]["version"] == 1

    applied = api.post("networks/resnet50/fit?apply=true", token="admin")
    assert applied["verdicts"][0]["applied"]
    profile = api.get("profiles/resnet50/T4")
    assert profile["status"]["version"] == 2
    assert profile["status"]["source"].startswith("fitted by ")
    sigmas = np.atleast_1d(profile["spec"]["latency_sigma"])
    assert all((sigmas >= 0.0) & (sigmas < 0.6))

    listed = api.get("networks/resnet50/fits")["items"]
    (latency,) = (fit for fit in listed if fit["quantity"] == "latency_ms")
    assert latency["is_current"] and latency["sample_count"] == 20
    assert latency["cross_validated_error"] < 0.05
    technique = latency["technique"]
    document = api.get(f"fits/{latency['id']}")
    assert document["document"]["technique"] == document["technique"] == technique
    assert api.status("GET", "fits/999999") == 404

    (known,) = api.get("networks/resnet50")["status"]["predictions"]
    for field, value in (
        ("gpu_type", "T4"),
        ("provenance", "measured"),
        ("technique", technique),
        ("samples", 20),
        ("profile_version", 2),
        ("correction", None),
    ):
        assert known[field] == value, field
    assert api.get("networks")["items"][0]["status"]["predictions"] is None
    events = api.get("events?subject=network/resnet50")["items"]
    assert sum(event["kind"] == "NetworkFitted" for event in events) == 2


def test_a_fit_of_a_network_that_nothing_is_known_of_is_refused(api: Api) -> None:
    api.put(
        "networks/mine", {"kind": "Network", "metadata": {"name": "mine"}, "spec": {}}
    )
    answer = api.call("POST", "networks/mine/fit")
    assert answer.status_code == 422 and "samples" in answer.json()["detail"]
    assert api.status("POST", "networks/nobody/fit") == 404


def test_what_waits_is_refitted_once_and_applied_only_where_the_operator_lets_it(
    api: Api,
) -> None:
    attempts = Attempts()
    rows = [
        replace(
            ROW,
            batch=batch,
            sm_percent=share,
            latency_ms=true_ms(batch, share),
            memory_mib=900.0,
        )
        for batch in (1.0, 2.0, 4.0, 8.0)
        for share in (20.0, 40.0, 60.0, 80.0, 100.0)
    ]

    def applied() -> list[bool] | None:
        """What became of the groups of the next refit; None where nothing waits."""
        how: dict[str, Any] = {"layers": {}, "now": lambda: NOW, "attempts": attempts}
        done = api.on_engine(lambda engine: refit_waiting(engine, run_here, **how))
        return done and [verdict.applied for verdict in done.verdicts]

    def add(rows: list[SampleRow], at: datetime = NOW) -> None:
        api.on_connection(lambda connection: samples.add(connection, rows, at=at))

    assert applied() is None
    api.put_policy(mode="advise")
    add([replace(ROW, source=SERVED)])
    assert applied() is None
    add(rows)
    assert applied() == [False]
    assert applied() is None
    api.put_policy(mode="auto")
    add([replace(rows[0], measured_at=NOW)], at=NOW + timedelta(seconds=1))
    assert applied() == [True]


def test_samples_that_come_while_a_fit_is_made_are_fitted_next_and_a_failed_fit_again_later(
    api: Api,
) -> None:
    times = [NOW]

    async def work(engine: Engine) -> None:
        attempts = Attempts()

        async def once(run: Run) -> RefitOutcome | None:
            return await refit_waiting(
                engine, run, layers={}, now=lambda: times[-1], attempts=attempts
            )

        async def add(batch: float) -> None:
            row = replace(ROW, batch=batch, memory_mib=900.0)
            async with engine.begin() as connection:
                await samples.add(connection, [row], at=times[-1])

        async def is_killed(request: RefitRequest) -> RefitAnswer:
            raise Unavailable(f"killed, with {len(request.samples)} samples")

        async def is_slow(request: RefitRequest) -> RefitAnswer:
            times.append(times[-1] + timedelta(seconds=5))
            await add(8.0)
            times.append(times[-1] + timedelta(seconds=5))
            return run_refit(request)

        for batch in (1.0, 2.0, 4.0):
            await add(batch)
        with pytest.raises(Unavailable, match="with 3 samples"):
            await once(is_killed)
        assert await once(run_here) is None
        times.append(times[-1] + RETRY_AFTER)
        assert await once(is_slow) is not None
        assert await once(run_here) is not None
        assert await once(run_here) is None

    api.on_engine(work)
    rows = api.get("networks/resnet50/fits")["items"]
    counts = {row["quantity"]: row["sample_count"] for row in rows}
    assert counts["latency_ms"] == 4


def test_a_poor_fit_to_other_conditions_does_not_replace_a_profile(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_the_api_fit_here(monkeypatch)
    sample = {"gpu_type": "T4", "sm_percent": 33, "memory_mib": 900}
    times_ms = {3: 10, 5: 60, 7: 12, 9: 70, 11: 15, 13: 90}
    odd = [{**sample, "batch": each, "latency_ms": ms} for each, ms in times_ms.items()]
    api.post(SAMPLES, {"samples": odd}, token="admin")
    answer = api.post("networks/resnet50/fit?apply=true", token="admin")
    (verdict,) = answer["verdicts"]
    assert not verdict["applied"] and "up to 10.0 % is taken" in verdict["reason"]
    assert api.get("profiles/resnet50/T4")["status"]["version"] == 1


def _report(api: Api, name: str) -> list[dict[str, Any]]:
    report = api.get(f"reports/{name}")
    return [dict(zip(report["columns"], row, strict=True)) for row in report["rows"]]


def test_new_samples_make_a_new_version_old_ones_stay_readable_and_the_report_has_the_new_one(
    api: Api,
) -> None:
    for factor in (1.0, 1.5):
        send(api, factor)
        fit_here(api)
    # Nothing new is learned of the same samples.
    fit_here(api)
    path = "networks/resnet50/fits"
    found = [
        (fit["version"], fit["is_current"])
        for fit in api.get(f"{path}?current=false")["items"]
        if fit["quantity"] == "latency_ms"
    ]
    assert found == [(2, True), (1, False)]
    page = api.get(f"{path}?current=false&limit=1")
    rest = api.get(f"{path}?current=false&limit=50&cursor={page['next_cursor']}")
    assert len(page["items"]) == 1 and page["items"][0] not in rest["items"]
    listed = {fit["quantity"]: fit for fit in api.get(path)["items"]}
    lines = _report(api, "fit_quality")
    assert [line["quantity"] for line in lines] == sorted(listed)
    for line in lines:
        fit = listed[line["quantity"]]
        percent = 100 * fit["cross_validated_error"]
        assert line["cross_validated_error_percent"] == pytest.approx(percent)
        assert (line["version"], line["samples"]) == (fit["version"], 40)
        assert line["technique"] == fit["technique"]


def test_health_is_forgotten_with_its_profile_and_shown_while_it_holds(
    api: Api,
) -> None:
    row = RowKey(50.0, 4, 1590.0)
    now = new_fit_state(np.zeros(1), 0.0)
    for period in range(1, 4):
        reading = ExecutionReading(replica="r", row=row, log_ratio=0.5, variance=1e-3)
        now = learn(now, [reading], {row: 0.0}, NOW.timestamp() + 10.0 * period)
    held = FitHealth(
        group=GROUP, now=now, planned=Correction(group=GROUP, health=now, at=NOW)
    )

    async def work(engine: Engine) -> list[int]:
        counts = []
        async with engine.begin() as connection:
            revision = (
                await connection.execute(select(cluster.c.catalogue_revision))
            ).scalar_one()
            assert await health.save(connection, [held], revision)
            older = replace(held, now=new_fit_state(np.zeros(1), 0.0))
            assert await health.save(connection, [older], revision)
            assert await health.load_all(connection) == (held,)
            assert not await health.save(connection, [held], revision - 1)
            counts.append(len(await health.load_all(connection)))
            (profile,) = await profiles.load_profiles(connection)
            changed = replace(profile, points=replace(profile.points, sensitivity=0.9))
        (line,) = _report(api, "fit_health")
        assert line["network"] == "resnet50"
        assert line["gpu_type"] == "T4"
        assert line["profile_version"] == 1
        assert line["correction_percent"] == pytest.approx(
            100 * (math.exp(now.belief.mean[0]) - 1)
        )
        assert line["error_percent"] == pytest.approx(100 * now.error)
        assert (line["is_alarmed"], line["readings"]) == (True, 3)
        assert line["alarm_since"].startswith("2026-03-01T12:00:20")
        api_view = api.get("networks/resnet50")["status"]["predictions"][0]
        assert api_view["correction"] > 1.3 and api_view["alarm_since"] is not None
        async with engine.begin() as connection:
            await profiles.save_profiles(connection, [changed], at=NOW)
            counts.append(len(await health.load_all(connection)))
        return counts

    assert api.on_engine(work) == [1, 0]
    assert (
        api.get("networks/resnet50")["status"]["predictions"][0]["correction"] is None
    )


def test_snapshots_read_at_once_each_have_the_sigma_of_their_own_points(
    api: Api,
) -> None:
    """The tick and what learns share one store; meanwhile profiles change, each version with one row more."""

    def profile(rows: int) -> StoredProfile:
        point = OperatingPoint(50.0, 1, 1000.0, 1.0, 1.0, 8.0, 900.0, 30.0, 0.1)
        points = OperatingPoints(
            network="resnet50",
            gpu_type="T4",
            sensitivity=0.4,
            rows=tuple(point._replace(batch=1 + batch) for batch in range(rows)),
        )
        return StoredProfile(points=points, provenance="measured")

    async def work(engine: Engine) -> int:
        store = PostgresStore(engine)

        async def read() -> int:
            checked = 0
            for _ in range(15):
                snapshot = await store.load_snapshot(NOW)
                for points in snapshot.points:
                    group = Group(points.network, points.gpu_type)
                    assert len(snapshot.latency_sigma[group]) == len(points.rows)
                    checked += 1
            return checked

        async def write() -> int:
            for rows in range(2, 14):
                async with engine.begin() as connection:
                    await profiles.save_profiles(connection, [profile(rows)], at=NOW)
            return 0

        return sum(await asyncio.gather(read(), read(), read(), write()))

    assert api.on_engine(work) == 45


def test_served_samples_and_old_fits_are_not_kept_for_ever(api: Api) -> None:
    for factor in (1.0, 1.5):
        send(api, factor)
        fit_here(api)

    async def work(engine: Engine) -> tuple[int, int]:
        async with engine.begin() as connection:
            await samples.add(connection, [replace(ROW, source=SERVED)], at=NOW)
        await maintenance.maintain(engine, NOW + timedelta(days=100))
        async with engine.begin() as connection:
            (counted,) = await samples.count(connection)
            kept = await fits.list_rows(connection, network="resnet50")
            with pytest.raises(NotFound):
                await fits.get(connection, 10**6)
        return counted.samples, sum(not row.is_current for row in kept)

    assert api.on_engine(work) == (40, 0)
