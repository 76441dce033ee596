"""What was measured survives, and is not taken for what another profile measured."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from agents.base.device import DeviceError
from agents.profiling.cells import Member, make_cell
from agents.profiling.journal import Header, Journal, Measurement, Timing

HEADER = Header(
    gpu_type="V100-32GB",
    gpu_uuid="GPU-0",
    driver_version="580",
    templates=(("a", "0123"),),
    seed=0,
    window_s=2.0,
    spread_limit=0.03,
)


def a_measurement(batch: int = 1) -> Measurement:
    member = Member(network="a", batch=batch, sm_percent=50.0)
    timing = Timing(
        member=member,
        latency_ms=3.25,
        latency_ms_p50=3.0,
        latency_ms_p99=5.0,
        batches=300,
        spread=0.01,
        memory_mib=None,
        sm_count=66,
    )
    return Measurement(
        cell=make_cell([member]),
        timings=(timing,),
        power_w=100.0,
        clock_mhz=1380.0,
        windows=3,
    )


def opened(path: Path, header: Header = HEADER, *, resumes: bool = True) -> Journal:
    return Journal(path, header, resumes=resumes)


def filled(path: Path, *batches: int) -> None:
    journal = opened(path)
    for batch in batches:
        journal.write(a_measurement(batch))
    journal.close()


def test_what_was_written_is_read_again_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "j"
    filled(path, 1, 2)
    again = opened(path)
    assert again.measurements == (a_measurement(1), a_measurement(2))
    assert again.has(a_measurement(2).cell)
    assert not again.has(a_measurement(3).cell)
    again.write(a_measurement(3))
    again.close()
    assert len(opened(path).measurements) == 3


@pytest.mark.parametrize("lost", [1, 10, 40])
def test_a_line_that_a_crash_tore_is_dropped_and_the_next_one_is_whole(
    tmp_path: Path, lost: int
) -> None:
    path = tmp_path / "j"
    filled(path, 1, 2)
    os.truncate(path, path.stat().st_size - lost)
    # Without its line end alone the last line is whole.
    kept = (a_measurement(1), a_measurement(2)) if lost == 1 else (a_measurement(1),)
    journal = opened(path)
    assert journal.measurements == kept
    journal.write(a_measurement(4))
    journal.close()
    again = opened(path)
    assert again.measurements == (*kept, a_measurement(4))
    assert again.dropped == 0


def test_an_altered_line_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "j"
    filled(path, 1, 2)
    path.write_bytes(
        path.read_bytes().replace(b'"latency_ms":3.25', b'"latency_ms":1.25', 1)
    )
    journal = opened(path)
    assert (journal.measurements, journal.dropped) == ((a_measurement(2),), 1)


def test_one_that_is_there_is_not_written_over_without_being_resumed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "j"
    filled(path, 1)
    with pytest.raises(
        DeviceError, match="holds 1 measured cells already; --resume continues"
    ):
        opened(path, resumes=False)
    assert len(opened(path).measurements) == 1


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            replace(HEADER, gpu_uuid="GPU-1"),
            "gpu_uuid is 'GPU-0' there and 'GPU-1' now",
        ),
        (replace(HEADER, templates=(("a", "4567"),)), "templates is"),
        (replace(HEADER, window_s=1.0), "window_s is 2.0 there and 1.0 now"),
    ],
)
def test_that_of_another_profile_is_refused_with_what_differs(
    tmp_path: Path, other: Header, words: str
) -> None:
    path = tmp_path / "j"
    filled(path, 1)
    with pytest.raises(DeviceError, match=words):
        opened(path, other)


def test_one_whose_first_line_is_lost_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"
    filled(path, 1)
    path.write_bytes(b"x" + path.read_bytes())
    with pytest.raises(DeviceError, match="has lost its first line"):
        opened(path)


def test_two_profiles_do_not_write_the_same_one(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = opened(path)
    with pytest.raises(DeviceError, match="another profile is being written"):
        opened(path)
    journal.close()
    opened(path).close()
