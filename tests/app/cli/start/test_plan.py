"""`plimsoll plan`: offline, from the contract's Problem to its Plan."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from app.cli.common.errors import CliError
from app.cli.start.plan import deliver
from solvers.check import violations
from solvers.check_report import report_violations
from solvers.policies.registry import policies
from solvers.types.documents.plan_json import plan_from_json
from solvers.types.documents.problem_json import problem_from_json, problem_to_json
from tests.app.runner import cli
from tests.solvers.sliced import tiny_sliced_problem

ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "tests" / "data" / "example_problem.json"
SHARED = ROOT.parent / "shared" / "contracts" / "example_problem.json"


def changed_example(folder: Path, **changes: object) -> Path:
    """The example with some fields of its first service changed."""
    document = json.loads(EXAMPLE.read_text())
    document["services"][0].update(changes)
    path = folder / "problem.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("problem", [EXAMPLE, SHARED], ids=["own", "contract's"])
def test_the_example_gets_a_valid_plan_in_a_file_and_a_summary_on_stdout(
    tmp_path: Path, problem: Path
) -> None:
    if not problem.exists():
        pytest.skip("the contract is not next to this checkout")
    result = cli("plan", problem, "-o", tmp_path / "plan.json")
    assert (result.code, result.err) == (0, "")
    question = problem_from_json(problem.read_text())
    plan, report = plan_from_json((tmp_path / "plan.json").read_text())
    assert violations(question, plan) + report_violations(question, plan, report) == ()
    lines = result.out.splitlines()
    assert lines[0].startswith("Policy joint: ")
    assert f"Cost ${report.cost_usd_per_hour:,.4f} per hour" in result.out
    assert [
        line.split()[0]
        for line in lines
        if line.startswith(("small", "big", "camera", "photo", "chat"))
    ] == [
        *("small", "big"),
        *("camera", "photo", "chat"),
    ]
    assert lines[-1] == f"Wrote {tmp_path / 'plan.json'}"
    assert max(map(len, lines[:-1])) <= 80


def test_the_same_seed_gives_the_same_plan_through_pipes() -> None:
    first = cli("plan - -o - --seed 7", stdin=EXAMPLE.read_text())
    second = cli("plan - -o - --seed 7", stdin=EXAMPLE.read_text())
    plans = [json.loads(result.out) for result in (first, second)]
    for plan in plans:
        del plan["report"]["seconds"]
    assert plans[0] == plans[1]
    assert "SERVICE" in first.err  # The summary stays out of the plan's way.


def test_a_plan_that_breaks_a_rule_is_shown_but_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = problem_from_json(EXAMPLE.read_text())
    plan, report = plan_from_json((EXAMPLE.parent / "example_plan.json").read_text())
    twice = replace(
        plan, gpus=tuple(replace(gpu, replicas=gpu.replicas * 2) for gpu in plan.gpus)
    )
    with pytest.raises(CliError, match=r"breaks \d+ rules; it is not written"):
        deliver(problem, twice, report, tmp_path / "plan.json")
    shown = capsys.readouterr().out
    assert "BROKEN RULE" in shown
    assert "\nsm " in shown
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "{",
            "not JSON: Expecting property name enclosed in double quotes at line 1, column 2",
        ),
        ('{"version": 3}', "version: this program reads versions 1 and 2 only"),
        ('{"version": NaN}', "NaN is not a number that the contract allows"),
    ],
)
def test_a_problem_that_cannot_be_read_is_named_with_its_field(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "problem.json"
    path.write_text(text)
    result = cli("plan", path)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"Error: {path}: {words}")
    assert cli("plan -", stdin=text).err.startswith("Error: stdin: ")


def test_files_and_policies_that_are_not_there_are_named(tmp_path: Path) -> None:
    assert (
        cli("plan", tmp_path / "none.json").err
        == f"Error: cannot read {tmp_path}/none.json: No such file or directory\n"
    )
    refused = cli("plan", EXAMPLE, "--policy", "magic")
    assert (
        f"no policy is called 'magic'; there are {', '.join(policies())}" in refused.err
    )
    result = cli("plan", EXAMPLE, "-o", tmp_path / "no" / "plan.json")
    assert (result.code, result.err.startswith("Error: cannot write ")) == (1, True)


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_another_solver_finds_the_same_plan(tmp_path: Path, solver: str) -> None:
    own, other = (
        cli("plan", EXAMPLE, "--policy", "hetsev", "-o", tmp_path / name, *options)
        for name, options in (("own", ()), ("other", ("--solver", solver)))
    )
    assert (own.code, other.code) == (0, 0)
    plans = [
        plan_from_json((tmp_path / name).read_text())[0] for name in ("own", "other")
    ]
    assert plans[0].gpus == plans[1].gpus
    assert f"autoscale {solver} +" in other.out


def test_an_exported_program_has_one_optimum_whatever_solves_it(tmp_path: Path) -> None:
    import highspy
    import pulp

    for name in ("model.lp", "model.mps"):
        assert (
            cli("plan", EXAMPLE, "--policy", "hetsev", "--export", tmp_path / name).code
            == 0
        )
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.readModel(str(tmp_path / "model.lp"))
    highs.run()
    _, program = pulp.LpProblem.fromMPS(str(tmp_path / "model.mps"))
    program.solve(pulp.PULP_CBC_CMD(msg=False))
    assert highs.getInfo().objective_function_value == pytest.approx(
        pulp.value(program.objective)
    )
    # Names that people can read: the service and the GPU type of every count.
    text = (tmp_path / "model.lp").read_text()
    assert "n_2_chat_big" in text and "demand_1_chat" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--export", "model.lp"), "policy joint has no integer program of its own"),
        (("--solver", "cbc"), "--solver and --export are for --policy hetsev"),
        (("--policy", "hetsev", "--export", "model.txt"), "--export: must end in .lp"),
        (
            ("--policy", "hetsev", "--export", "nowhere/model.lp"),
            "--export: nowhere/model.lp cannot be written: No such file or directory",
        ),
    ],
)
def test_what_cannot_be_exported_is_told_with_the_remedy(
    options: tuple[str, ...], message: str
) -> None:
    refused = cli("plan", EXAMPLE, *options)
    assert refused.code == 1
    assert message in refused.err


def test_gpus_are_cut_by_joint_and_refused_by_policies_that_plan_whole_ones(
    tmp_path: Path,
) -> None:
    path = tmp_path / "problem.json"
    path.write_text(problem_to_json(tiny_sliced_problem(1, is_beside=False)))
    planned = cli("plan", path, "-o", tmp_path / "plan.json")
    assert planned.code == 0
    assert "in half with" in planned.out or "in whole with" in planned.out
    plan, report = plan_from_json((tmp_path / "plan.json").read_text())
    problem = problem_from_json(path.read_text())
    assert violations(problem, plan) == ()
    assert report_violations(problem, plan, report) == ()
    layouts: Counter[tuple[str, str]] = Counter()
    for gpu in plan.gpus:
        cut = [each.slice.profile for each in gpu.replicas if each.slice]
        layouts[gpu.gpu_type, ",".join(sorted(cut))] += gpu.count
    shown = [line.split() for line in planned.out.splitlines() if "MIG" not in line]
    for (gpu_type, layout), number in layouts.items():
        assert [gpu_type, str(number), layout] in shown
    refused = cli("plan", path, "--policy", "hetsev")
    assert refused.code == 1
    words = "policy hetsev plans whole GPUs only, and big may be cut into slices; joint plans them"
    assert refused.err == f"Error: {words}\n"
    compared = cli("policy compare joint hetsev --problem", path)
    assert compared.code == 0
    assert "hetsev plans whole GPUs only" in compared.out + compared.err


def test_parameters_are_set_by_name(tmp_path: Path) -> None:
    result = cli("plan", EXAMPLE, "--policy", "hetsev", "--set", "placement=as printed")
    assert result.code == 0
    assert "Note: parameters: placement = as printed" in result.out
    assert "placement worst fit" in result.out
    model = tmp_path / "model.lp"
    weight = ("--set", "launch_weight_per_s=0.5")
    exported = cli("plan", EXAMPLE, "--policy", "hetsev", *weight, "--export", model)
    assert exported.code == 0
    plain = tmp_path / "plain.lp"
    assert cli("plan", EXAMPLE, "--policy", "hetsev", "--export", plain).code == 0
    assert model.read_text() != plain.read_text()


@pytest.mark.parametrize(
    ("policy", "stated", "message"),
    [
        ("hetsev", "queues", "--set queues: must be NAME=VALUE"),
        ("hetsev", "=4", "--set =4: must be NAME=VALUE"),
        ("hetsev", "queues=0", "--set: queues: must be a whole number from 1 to 64"),
        ("hetsev", "gain=1", "--set: gain: unknown parameter; this policy has"),
        ("joint", "queues=4", "--set: queues: unknown parameter; this policy has none"),
    ],
)
def test_what_may_not_be_set_is_refused(policy: str, stated: str, message: str) -> None:
    refused = cli("plan", EXAMPLE, "--policy", policy, "--set", stated)
    assert refused.code == 1
    assert refused.err.startswith(f"Error: {message}")
