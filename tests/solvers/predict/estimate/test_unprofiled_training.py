"""Training that was never profiled: by its layers it presses about as its relatives do, rather more than less."""

from dataclasses import replace
from functools import cache

import pytest

from app.catalogue.catalogue import load_gpu_types, load_profiles, load_training_layers
from solvers.predict.data.samples import LayerCounts
from solvers.predict.estimate.unprofiled_training import (
    ProfiledNetworks,
    UnprofiledNetwork,
)
from solvers.types.problem import OperatingPoint, OperatingPoints

A100 = "A100-40GB"


@cache
def catalogue() -> ProfiledNetworks:
    """All of the catalogue's networks that are profiled in training, and some services."""
    (gpu_type,) = load_gpu_types([A100])
    layers = load_training_layers()
    return ProfiledNetworks(
        gpu_type=gpu_type,
        training=load_profiles([each.network for each in layers], [A100]),
        services=load_profiles(
            ["resnet50", "inception_v3", "convnext_small", "vgg16"], [A100]
        ),
        layers=layers,
    )


def without(*networks: str) -> ProfiledNetworks:
    known = catalogue()
    return replace(
        known,
        training=[each for each in known.training if each.network not in networks],
        layers=[each for each in known.layers if each.network not in networks],
    )


def profiled(network: str) -> dict[float, float]:
    """Pressure by share, at the middle batch."""
    (points,) = (entry for entry in catalogue().training if entry.network == network)
    rows = [
        row
        for row in points.rows
        if row.clock_mhz == catalogue().gpu_type.clocks_mhz[-1]
    ]
    batches = sorted({row.batch for row in rows})
    return {
        row.sm_percent: row.pressure
        for row in rows
        if row.batch == batches[len(batches) // 2]
    }


def test_left_out_a_network_is_judged_too_heavy_rather_than_too_light() -> None:
    for layers in catalogue().layers:
        found = without(layers.network).estimate(
            UnprofiledNetwork(layers=layers, batch=7, memory_mib=3000.0)
        )
        assert found is not None
        truth = profiled(layers.network)
        ratios = [
            row.pressure / truth[row.sm_percent]
            for row in found.rows
            if row.sm_percent >= 20.0
        ]
        assert min(ratios) >= 0.9 and max(ratios) <= 6.0, layers.network


def test_a_heavier_architecture_presses_more() -> None:
    networks = ("resnet18-training", "bert-training")
    left, ours = without(*networks), []
    for network in networks:
        (layers,) = (one for one in catalogue().layers if one.network == network)
        found = left.estimate(
            UnprofiledNetwork(layers=layers, batch=7, memory_mib=3000.0)
        )
        assert found is not None
        ours.append(found.rows[-1].pressure)
    assert ours[0] < ours[1]


# A row takes 10 ms and presses with p / 100 (light) or p / 50 (heavy); 5 W and 1 % sensitivity.
def points(
    network: str, pressure: float, *, power_w: float = 5.0, run_ms: float = 10.0
) -> OperatingPoints:
    rows = tuple(
        OperatingPoint(
            p,
            4,
            catalogue().gpu_type.clocks_mhz[-1],
            0.0,
            0.0,
            run_ms,
            100.0,
            power_w,
            pressure * p / 100.0,
        )
        for p in (20.0, 60.0, 80.0)
    )
    return OperatingPoints(network=network, gpu_type=A100, sensitivity=0.01, rows=rows)


def test_without_layers_it_presses_as_the_worst_and_has_the_mean_times() -> None:
    newcomer = UnprofiledNetwork(
        layers=LayerCounts(network="new", counts={}, parameters_millions=1.0),
        batch=3,
        memory_mib=777.0,
    )
    relatives = ProfiledNetworks(
        gpu_type=catalogue().gpu_type,
        training=[points("light", 1.0), points("heavy", 2.0, power_w=9.0, run_ms=40.0)],
        services=catalogue().services,
        layers=(),
    )
    found = relatives.estimate(newcomer)
    assert found is not None
    assert [row.pressure for row in found.rows] == [0.4, 1.2, 1.6]
    assert [row.run_ms for row in found.rows] == pytest.approx(
        [20.0] * 3
    )  # the geometric mean of 10 and 40
    assert {(row.batch, row.memory_mib, row.power_w) for row in found.rows} == {
        (3, 777.0, 9.0)
    }


def test_without_relatives_nothing_can_be_said() -> None:
    newcomer = UnprofiledNetwork(
        layers=catalogue().layers[0], batch=3, memory_mib=777.0
    )
    assert replace(without("none"), training=()).estimate(newcomer) is None


def test_where_no_service_feels_its_neighbours_it_presses_as_the_worst() -> None:
    numb = [replace(entry, sensitivity=0.0) for entry in catalogue().services]
    newcomer = UnprofiledNetwork(
        layers=catalogue().layers[0], batch=3, memory_mib=777.0
    )
    relatives = replace(without(catalogue().layers[0].network), services=numb)
    found = relatives.estimate(newcomer)
    assert found is not None
    highest = max(profiled(each.network)[50.0] for each in relatives.training)
    assert {row.sm_percent: row.pressure for row in found.rows}[50.0] == highest
