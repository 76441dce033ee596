"""What a node allows to run: templates are checked when they are read, parameters when they are filled in."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.base.device import DeviceError, LaunchFailed
from agents.processes.template_file import (
    MAX_FILE,
    BadTemplate,
    built_in,
    load_templates,
)
from agents.processes.templates import (
    BUILT_IN,
    BUILT_IN_ENGINE,
    BUILT_IN_TASK,
    NAME,
    Parameters,
    Template,
)
from tests.agents.factories import an_engine

VLLM = """
default = "worker"

[networks]
"llama-3.1-8b" = "vllm"

[templates.vllm]
server = "vllm"
command = ["vllm", "serve", "/srv/networks/{network}", "--port", "{port}", "--max-num-seqs={batch}",
           "--gpu-memory-utilization={memory_fraction}"]
environment = {VLLM_CACHE_ROOT = "{directory}"}
pass_environment = ["HF_HOME"]
start_limit_s = 600
"""

SERVES = '[templates.t]\ncommand = ["serve", "{port}"]\n'


def a_file(folder: Path, text: str) -> Path:
    path = folder / "templates.toml"
    path.write_text(text)
    path.chmod(0o640)
    return path


def some_parameters(**changes: object) -> Parameters:
    facts: dict[str, object] = {
        "service": "chat",
        "task": "nightly",
        "network": "llama-3.1-8b",
        "batch": 8,
        "sm_percent": 37.5,
        "memory_mib": 10240.9,
        "gpu_memory_mib": 81920.0,
        "ports": (21000,),
        "directory": "/run/r1",
    }
    return Parameters(**{**facts, **changes})  # type: ignore[arg-type]


def a_template(*words: str, **changes: object) -> Template:
    return Template(name="t", command=("serve", "{port}", *words), **changes)  # type: ignore[arg-type]


def test_without_a_file_every_network_has_our_own_worker() -> None:
    from agents.serving.arguments import make_parser

    template = load_templates(None).find("resnet50")
    assert template == built_in()
    filled = template.fill(some_parameters())
    words = "--engine timed --service chat --host 127.0.0.1 --port 21000 --batch 8 --memory-mib 10240 --drain-s 10"
    program = (sys.executable, "-m", "agents.serving")
    assert filled.command == (*program, *words.split())
    make_parser().parse_args(filled.command[3:])


def test_a_file_adds_templates_and_says_who_uses_them(tmp_path: Path) -> None:
    templates = load_templates(a_file(tmp_path, VLLM))
    assert set(templates.by_name) == {BUILT_IN, BUILT_IN_ENGINE, BUILT_IN_TASK, "vllm"}
    assert templates.find("resnet50").name == BUILT_IN
    assert templates.find("resnet50", "vllm").name == "vllm"
    with pytest.raises(LaunchFailed, match=r"'sh' is not allowed .* engine, trainer"):
        templates.find("resnet50", "sh")
    template = templates.find("llama-3.1-8b")
    assert (template.server, template.batch_change) == ("vllm", "restart")
    assert template.start_limit_s == 600.0
    filled = template.fill(some_parameters())
    # 10240.9 of 81920 MiB are 0.12501…, of which four digits are kept.
    words = "vllm serve /srv/networks/llama-3.1-8b --port 21000 --max-num-seqs=8 --gpu-memory-utilization=0.1250"
    assert filled.command == tuple(words.split())
    assert filled.environment == {"VLLM_CACHE_ROOT": "/run/r1"}


def test_without_a_default_unnamed_networks_are_refused(tmp_path: Path) -> None:
    templates = load_templates(
        a_file(tmp_path, VLLM.replace('default = "worker"', 'default = ""'))
    )
    assert templates.find("llama-3.1-8b").name == "vllm"
    with pytest.raises(LaunchFailed, match="resnet50 has no runtime template"):
        templates.find("resnet50")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = [", "is not TOML"),
        ("extra = 1", r"unknown \['extra'\]"),
        ("templates = 3", "must be a table"),
        ("[templates.t]", "missing required field `command`"),
        ('[templates.t]\ncommand = "serve {port}"', "Expected `array`"),
        ("[templates.t]\ncommand = []", "must begin with the program"),
        ('[templates.t]\ncommand = ["{network}", "{port}"]', "begin with the program"),
        ('[templates.t]\ncommand = ["serve"]', r"\{port\} must stand"),
        ('[templates.t]\ncommand = ["a", "{port}", "{prot}"]', r"unknown .*\['prot'\]"),
        ('[templates.t]\ncommand = ["serve", "{port}", "a\\u0000b"]', "NUL"),
        (f"{SERVES}shell = true", r"unknown \['shell'\]"),
        (f'{SERVES}server = "ray"', "Invalid enum value"),
        (f'{SERVES}server = "vllm"\nbatch_change = "live"', "must be restart"),
        (f'{SERVES}server = "vllm"\ndrain = "server"', "must be router"),
        (f"{SERVES}start_limit_s = 0", "above 0"),
        (f"{SERVES}drain_limit_s = inf", "at most 3600"),
        (f'{SERVES}readiness_path = "ready"', "begin with /"),
        (f'{SERVES}warm_up = {{path = "/w", body = "", requests = 0}}', "1 to 1000"),
        (f'{SERVES}files = {{"../x" = ""}}', "own directory"),
        (f'{SERVES}environment = {{"A B" = ""}}', "it is not a valid name"),
        (f'{SERVES}environment = {{CUDA_VISIBLE_DEVICES = "0"}}', "agent's own"),
        (f'{SERVES}environment = {{CUDA_MPS_PIPE_DIRECTORY = "/"}}', "agent's own"),
        (f'{SERVES}pass_environment = ["PLIMSOLL_TOKEN"]', "agent's own"),
        (f'{SERVES}pod.volumes = [{{path = "/m"}}]', "either a claim or a host_path"),
        (f'{SERVES}pod.volumes = [{{path = "m", claim = "c"}}]', "begins with /"),
        (f'{SERVES}pod.pull = "Sometimes"', "pod.pull"),
        ('[templates."a b"]\ncommand = ["serve", "{port}"]', "name must match"),
        ('[networks]\nresnet50 = "t"', "no template 't'"),
        ('default = "t"', "no template 't'"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_place(
    tmp_path: Path, text: str, words: str
) -> None:
    path = a_file(tmp_path, text)
    with pytest.raises(BadTemplate, match=words) as refused:
        load_templates(path)
    assert str(path) in str(refused.value)
    assert isinstance(refused.value, DeviceError)


def test_a_file_that_is_missing_too_large_or_open_to_everybody_is_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(BadTemplate, match="cannot be read"):
        load_templates(tmp_path / "none.toml")
    with pytest.raises(BadTemplate, match="more than"):
        load_templates(a_file(tmp_path, "#" * (MAX_FILE + 1)))
    path = a_file(tmp_path, VLLM)
    path.chmod(0o666)
    with pytest.raises(BadTemplate, match="chmod o-w"):
        load_templates(path)


PATHS = ["", "-rf", "--port=1", "../secret", "a/b", ".", "{port}", "x" * 129]


SHELL = ["a b", "a;b", "$(id)", "`id`", "a\nb", "a\0b", "é"]


@pytest.mark.parametrize("field", ["service", "network"])
def test_names_that_could_be_anything_else_are_refused(field: str) -> None:
    for text in PATHS + SHELL:
        with pytest.raises(LaunchFailed, match=f"{field} .* cannot be a parameter"):
            a_template().fill(some_parameters(**{field: text}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": 0}, "batch 0"),
        ({"batch": 4097}, "batch 4097"),
        ({"sm_percent": 0.0}, "sm_percent"),
        ({"sm_percent": 100.1}, "sm_percent"),
        ({"sm_percent": float("nan")}, "sm_percent"),
        ({"memory_mib": -1.0}, "memory_mib"),
        ({"memory_mib": float("inf")}, "memory_mib"),
        ({"ports": ()}, "needs 1 ports"),
        ({"ports": (70000,)}, "needs 1 ports"),
    ],
)
def test_numbers_out_of_range_are_refused_whether_used_or_not(
    changes: dict[str, object], words: str
) -> None:
    with pytest.raises(LaunchFailed, match=words):
        a_template().fill(some_parameters(**changes))


@pytest.mark.parametrize(
    "changes", [{"gpu_memory_mib": 0.0}, {"memory_mib": 0.0}, {"memory_mib": 90000.0}]
)
def test_a_fraction_of_an_unknown_memory_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(LaunchFailed, match="memory_fraction"):
        a_template("{memory_fraction}").fill(some_parameters(**changes))


@given(st.text(max_size=40))
def test_a_parameter_is_one_word_or_nothing(text: str) -> None:
    """Whatever comes over the wire: the command has as many words as its template, and the rest is untouched."""
    template = a_template("--network", "pre-{network}-post")
    try:
        filled = template.fill(some_parameters(network=text))
    except LaunchFailed:
        assert not NAME.fullmatch(text)
        return
    assert filled.command == ("serve", "21000", "--network", f"pre-{text}-post")
    assert (
        not text.startswith("-")
        and "/" not in text
        and not set(text) & set(" \t\n\0;|&$`<>\"'\\{}")
    )


def test_values_are_not_looked_through_again_and_other_braces_stay() -> None:
    template = a_template('{"a": {batch}}', "{Port}", "{}", "{directory}")
    filled = template.fill(some_parameters(directory="/run/{port}"))
    assert filled.command[2:] == ('{"a": 8}', "{Port}", "{}", "/run/{port}")


def test_the_digest_tells_commands_apart_and_nothing_else() -> None:
    assert a_template().digest == a_template(start_limit_s=7.0).digest
    others = (
        a_template("x"),
        a_template(environment={"A": "1"}),
        a_template(files={"a": "1"}),
    )
    assert len({each.digest for each in (a_template(), *others)}) == 4


def test_the_documented_file_is_read(tmp_path: Path) -> None:
    """docs/runtimes.md shows a whole file; what it shows must be what is taken."""
    text = (Path(__file__).parents[3] / "docs/runtimes.md").read_text(encoding="utf-8")
    example = text.split("```toml\n")[1].split("```")[0]
    templates = load_templates(a_file(tmp_path, example)).by_name
    names = "worker engine trainer resnet triton vllm mlserver"
    assert set(templates) == set(names.split())
    for template in templates.values():
        ports = tuple(range(21000, 21000 + len(template.ports)))
        filled = template.fill(some_parameters(ports=ports, engine=an_engine(0, 1)))
        assert filled.command[0] == template.command[0]
