"""`plimsoll policy train`: what it refuses before it begins, and a short training from begin to end."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from app.cli.decisions.policy_train import problem_of
from solvers.policies.registry import trained_policies
from tests.app.runner import cli
from tests.app.runs import a_document

pytestmark = pytest.mark.skipif(
    not trained_policies(), reason="no policy has anything to train"
)


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A scenario of the simulator's tests."""
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(a_document()))
    return path


@pytest.mark.parametrize("option", ["-o", "--checkpoint", "--plot"])
def test_a_folder_that_is_not_there_is_told_before_an_hour_of_training(
    fleet: Path, option: str
) -> None:
    missing = fleet.with_name("missing") / "file"
    result = cli(
        "policy train inss --fleet",
        fleet,
        "-o",
        fleet.with_name("actor.npz"),
        option,
        missing,
    )
    assert result.code == 1
    assert f"{missing} cannot be written" in result.err
    assert f"mkdir -p {missing.parent}" in result.err


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")
def test_without_pytorch_it_says_what_to_install(fleet: Path) -> None:
    result = cli("policy train inss --fleet", fleet, "-o", fleet.with_name("actor.npz"))
    assert (result.code, result.err) == (
        1,
        "Error: training needs PyTorch\nHint: pip install 'plimsoll[rl]'\n",
    )


def test_it_goes_on_from_a_checkpoint_and_draws_its_curves(fleet: Path) -> None:
    pytest.importorskip("torch")
    from solvers.papers.inss.training.actor import actor_from_bytes
    from solvers.papers.inss.training.trainer import begin

    actor, state, plot = (
        fleet.with_name(name) for name in ("actor.npz", "state.pt", "curve.svg")
    )
    begun = begin(problem_of(fleet), seed=0)
    begun.training.episode = 32
    state.write_bytes(begun.save())
    files = ("-o", actor, "--checkpoint", state, "--plot", plot)
    result = cli(
        "policy train inss --fleet", fleet, "--episodes", "1", *files, "--resume"
    )
    assert result.code == 0, result.err
    assert result.err.startswith("episode 64: reward ")
    fingerprint = actor_from_bytes(actor.read_bytes()).fingerprint
    assert (
        result.out
        == f"Wrote {actor}: {actor.stat().st_size:,} bytes for fleet {fingerprint}\n"
    )
    assert plot.read_text().count("episodes</text>") == 3
    assert sorted(path.name for path in fleet.parent.iterdir()) == [
        "actor.npz",
        "curve.svg",
        "fleet.yaml",
        "state.pt",
    ]
    begun.resume(state.read_bytes())
    assert begun.episode == 64
