"""Templates of tasks: who runs by which, what they may hold, and what is refused."""

import sys
from pathlib import Path

import pytest

from agents.base.device import LaunchFailed
from agents.processes.template_file import BadTemplate, built_in_task, load_templates
from agents.processes.templates import BUILT_IN_TASK, Parameters
from agents.trainer.trainer import make_parser

TASKS = """
[tasks]
offline = "batch"
"bert-training" = "bert"
"gpt-training" = ""

[templates.batch]
server = "task"
command = ["batch", "--from={done_iterations}", "--to", "{iterations}"]
progress_file = "{directory}/done"

[templates.bert]
server = "task"
command = ["python", "bert.py", "{task}", "--hook", "{port}"]
"""
COMMAND = 'server = "task"\ncommand = ["work", "{task}"]'


def a_file(folder: Path, text: str) -> Path:
    path = folder / "templates.toml"
    path.write_text(text)
    path.chmod(0o640)
    return path


def some_parameters(*ports: int) -> Parameters:
    return Parameters(
        task="nightly",
        kind="training",
        network="bert-training",
        batch=32,
        iterations=1000,
        done_iterations=250.9,
        sm_percent=30.0,
        memory_mib=4096.0,
        gpu_memory_mib=16384.0,
        ports=ports,
        directory="/run/nightly",
    )


def test_the_built_in_command_is_one_that_our_trainer_takes() -> None:
    filled = built_in_task().fill(some_parameters(20000))
    assert filled.command[:3] == (sys.executable, "-m", "agents.trainer.trainer")
    options = make_parser().parse_args(filled.command[3:])
    assert options.task == "nightly"
    assert options.kind == "training"
    assert options.network == "bert-training"
    assert options.batch == 32
    # Iterations that are done are whole: of 250.9 another process goes on from 250.
    assert options.iterations == 1000
    assert options.done_iterations == 250.0
    assert options.port == 20000
    assert options.checkpoint == Path("/run/nightly/kept")
    assert filled.progress_file == "/run/nightly/kept"


def test_a_network_comes_before_a_kind_before_the_default(tmp_path: Path) -> None:
    templates = load_templates(a_file(tmp_path, TASKS))
    assert templates.find_task("bert-training", "offline").name == "bert"
    assert templates.find_task("resnet50", "offline").name == "batch"
    assert templates.find_task("resnet50", "training").name == BUILT_IN_TASK
    with pytest.raises(
        LaunchFailed,
        match=r"training of network gpt-training has no template .* add it to \[tasks\]",
    ):
        templates.find_task("gpt-training", "training")
    with pytest.raises(
        LaunchFailed, match="template 'bert' is for tasks, not for replicas"
    ):
        templates.find("resnet50", "bert")


TASK = f"[templates.t]\n{COMMAND}\n"
SERVES = '[templates.t]\ncommand = ["serve", "{port}"'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'{TASK}warm_up = {{path = "/w", body = ""}}', r"\['warm_up'\] do not apply"),
        (f'{TASK}batch_change = "live"', r"\['batch_change'\] do not apply to a task"),
        (f'{TASK}progress_file = "kept"', r"begins with / or \{directory\}/"),
        (TASK.replace("{task}", "{service}"), r"unknown placeholder \['service'\]"),
        (f'{SERVES}, "{{task}}"]', r"unknown placeholder \['task'\]"),
        (f'{SERVES}]\nprogress_file = "/kept"', "progress_file is a task's"),
        (f'[networks]\nresnet50 = "t"\n{TASK}', r"\[tasks\] names .* server task"),
        ('[tasks]\noffline = "worker"', r"\[tasks\] names templates with server task"),
        (
            '[tasks]\noffline = "t"',
            "no template 't'; there are engine, trainer, worker",
        ),
    ],
)
def test_what_is_wrong_with_a_template_of_tasks_is_said(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(BadTemplate, match=words):
        load_templates(a_file(tmp_path, text))
