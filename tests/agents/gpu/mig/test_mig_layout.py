"""Layouts of slices, their indices and types: by hand, without a driver."""

from dataclasses import replace
from math import factorial

import pytest

from agents.base.device import OutOfRange
from agents.gpu.mig.layout import MAX_ORDERS, fits, names_of, orders, parse, what_fits
from agents.gpu.nvml.mig_types import (
    MigProfile,
    Placement,
    max_clients,
    parent_index,
    slice_index,
    slice_type,
)
from tests.agents.fakes.nvml.fake_gpus import PROFILES

H200 = tuple(
    MigProfile(
        id=identity,
        name=name,
        slice_count=slices,
        sm_count=sms,
        memory_mib=memory_mib,
        max_count=len(starts),
        free_count=len(starts),
        placements=tuple(Placement(start=start, size=size) for start in starts),
    )
    for name, identity, slices, sms, memory_mib, size, starts in PROFILES[
        "H200"
    ].values()
)


def wanted(text: str) -> tuple[MigProfile, ...]:
    return parse(text, H200)


@pytest.mark.parametrize(
    ("text", "has_room"),
    [
        ("7g.141gb", True),
        ("7g.141gb,1g.18gb", False),
        ("3g.71gb,3g.71gb", True),
        # Two of them take all eight memory slices, though six sevenths of the SMs.
        ("3g.71gb,3g.71gb,1g.18gb", False),
        ("4g.71gb,3g.71gb", True),
        ("4g.71gb,4g.71gb", False),
        ("2g.35gb,2g.35gb,2g.35gb,1g.35gb", True),
        ("2g.35gb,2g.35gb,2g.35gb,1g.18gb", True),
        # 2g at 0, 2 and 4 leave 6 alone, and no 1g.18gb begins at 7.
        ("2g.35gb,2g.35gb,2g.35gb,1g.18gb,1g.18gb", False),
        # 3g must lie at 4, so that the others have 0 to 3: 2 + 1 + 1.
        ("3g.71gb,2g.35gb,1g.18gb,1g.18gb", True),
        (",".join(["1g.18gb"] * 7), True),
        (",".join(["1g.18gb"] * 8), False),
    ],
)
def test_a_layout_fits_where_all_have_places_beside_one_another(
    text: str, has_room: bool
) -> None:
    assert fits(wanted(text)) is has_room


def test_what_does_not_fit_is_told_with_what_would() -> None:
    assert what_fits(wanted("3g.71gb,3g.71gb,1g.18gb"), H200) == (
        "3g.71gb,3g.71gb would fit; besides that there is room for nothing"
    )
    # Next to a 4g at 0 to 3: 2g at 4; 3g at 4; 1g.35gb at 4 and 6; 1g.18gb at 4, 5 and 6; in the order of H200.
    assert what_fits(wanted("4g.71gb,4g.71gb"), H200) == (
        "4g.71gb would fit; besides that there is room for 3 x 1g.18gb or 1 x 2g.35gb or 1 x 3g.71gb or 2 x 1g.35gb"
    )


@pytest.mark.parametrize("text", ["3g.40gb", "", " , ", ",".join(["1g.18gb"] * 9)])
def test_what_is_no_layout_is_refused_with_what_the_gpu_can_have(text: str) -> None:
    with pytest.raises(OutOfRange, match=r"can have .*3g.71gb \(at most 2\)"):
        wanted(text)


def test_every_order_comes_once_and_no_more_than_so_many() -> None:
    found = [names_of(order) for order in orders(wanted("3g.71gb,1g.18gb,1g.18gb"))]
    # 3! / 2! = 3.
    assert found == [
        "3g.71gb,1g.18gb,1g.18gb",
        "1g.18gb,3g.71gb,1g.18gb",
        "1g.18gb,1g.18gb,3g.71gb",
    ]
    different = tuple(
        replace(H200[0], id=100 + number, name=f"p{number}") for number in range(7)
    )
    assert len(list(orders(different))) == MAX_ORDERS < factorial(7)


def test_an_index_tells_the_gpu_and_clashes_with_none() -> None:
    indices = {
        slice_index(gpu, instance, compute)
        for gpu in range(64)
        for instance in range(15)
        for compute in range(8)
    }
    assert len(indices) == 64 * 15 * 8
    assert min(indices) == 1000 > 63
    assert max(indices) == 64_147 <= 64_999
    assert slice_index(2, 7, 0) == 3070
    parents = {0: 0, 63: 63, 1000: 0, 1147: 0, 3070: 2, 64_147: 63}
    assert {index: parent_index(index) for index in parents} == parents


def test_names_of_types_order_of_slices_and_clients_of_each() -> None:
    assert slice_type("H100-80GB", "1g.10gb+me") == "H100-80GB-MIG-1g.10gb.me"
    assert names_of(wanted(" 1g.18gb, 3g.71gb,1g.35gb ")) == "3g.71gb,1g.35gb,1g.18gb"
    # Of 48: 1/7 are 6.86, 3/7 are 20.6.
    most = {"": 48, "7g.141gb": 48, "3g.71gb": 20, "1g.18gb": 6, "1c.3g.71gb": 20}
    assert {profile: max_clients(profile) for profile in most} == most
