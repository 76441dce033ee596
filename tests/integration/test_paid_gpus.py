"""GPUs that are paid for anyway, over the API and in stored problems."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.decisions import problem_archive
from solvers.types.state import ALL_PAID
from tests.integration.api_harness import Api, Prepared, gpu_type
from tests.integration.test_repositories import with_connection
from tests.solvers.tick.test_survive import a_problem

pytestmark = pytest.mark.integration


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        yield running


@pytest.mark.parametrize("paid", [0, 2, "all"])
def test_what_is_paid_for_comes_back_as_it_was_stated(api: Api, paid: object) -> None:
    api.put("gpu-types/T4", gpu_type(paid=paid))
    assert api.get("gpu-types/T4")["spec"]["paid"] == paid


@pytest.mark.parametrize("paid", [-1, "some", True, 0.5])
def test_what_is_no_number_of_gpus_is_refused_once_by_name(
    api: Api, paid: object
) -> None:
    answer = api.call("PUT", "gpu-types/T4", gpu_type(paid=paid), If_Match="*")
    assert answer.status_code in (400, 422)
    (refused,) = answer.json()["errors"]
    assert refused["pointer"] == "/spec/paid"
    assert "must be all or a number of GPUs" in refused["detail"]


def test_a_stored_problem_keeps_what_is_paid_for(database: str) -> None:
    plain = a_problem(10.0)
    counts = (2, ALL_PAID)
    paid = tuple(
        replace(one, paid_count=count)
        for one, count in zip(plain.gpu_types, counts, strict=True)
    )
    problem = replace(plain, gpu_types=paid)

    async def work(connection: AsyncConnection) -> None:
        for stored in (plain, problem):
            packed = problem_archive.pack(stored, problem_archive.PartCache())
            await problem_archive.save_parts(connection, packed.parts)
            assert await problem_archive.unpack(connection, packed.body) == stored

    with_connection(database, work)
