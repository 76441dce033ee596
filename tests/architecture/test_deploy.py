"""What runs Plimsoll elsewhere stays true to it: commands, flags, images, manifests and secrets."""

import configparser
import fnmatch
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyOptions

from agents.base.clock import ManualClock
from agents.daemon.build import make_device
from agents.gpu.knobs.restore import main as restore
from agents.main import make_parser
from agents.processes.user import RIGHTS
from app.base.settings import Settings
from app.catalogue.catalogue import list_networks, load_gpu_types
from app.cli.common.context import CliContext
from app.cli.common.manifest_files import read_manifests
from app.cli.root import root_command
from app.manifests.objects import NodeManifest, ServiceManifest
from bench import load_http
from tests.agents.fakes import fake_node

ROOT = Path(__file__).parents[2]
COMPOSE = PyOptions(apply_merge=True).from_yaml(
    (ROOT / "docker-compose.yml").read_text()
)
SERVICES: dict[str, dict[str, Any]] = COMPOSE.to_dict()["services"]
SCRIPTS = sorted((ROOT / "deploy" / "testbed").glob("*.sh"))
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
ENDING = {"secrets", "migrate", "deploy", "deploy-h100"}
"""Services that do one thing and end."""
LOADS = {"load", "load-h100"}
FAKE = {"deploy-h100", "agent-h100", "load-h100"}
"""Services of the profile with fake GPUs."""


def words(value: object) -> list[str]:
    assert isinstance(value, list)
    return [str(word) for word in value]


def command(name: str) -> list[str]:
    found = words(SERVICES[name]["command"]) if "command" in SERVICES[name] else []
    # The image's entry point becomes the agent.
    return (
        fake_node.make_parser().parse_args(found).command
        if found[:1] == ["run"]
        else found
    )


def script_commands(path: Path) -> Iterator[list[str]]:
    for line in path.read_text().splitlines():
        if line.strip().startswith("plimsoll"):
            yield shlex.split(line.partition(">")[0])


def unit_commands(path: Path) -> Iterator[list[str]]:
    for line in path.read_text().splitlines():
        key, _, value = line.partition("=")
        if key.startswith("Exec"):
            known = value.replace("${PLIMSOLL_URL}", "https://plimsoll.example")
            # The node's own options stand in a file next to the unit.
            program, *arguments = shlex.split(
                known.replace("$PLIMSOLL_AGENT_OPTIONS", "--keep-replicas")
            )
            yield [Path(program).name, *arguments]


def image_commands() -> Iterator[list[str]]:
    for match in re.finditer(
        r"^(?:CMD|ENTRYPOINT) (\[.*\])$", DOCKERFILE, re.MULTILINE
    ):
        found = words(json.loads(match[1]))
        if found[0] not in ("python", "fake_node.py"):
            yield found


def stages() -> dict[str, str]:
    """Text of each stage of the Dockerfile, from the name of its base on."""
    found = DOCKERFILE.split("\nFROM ")[1:]
    return {stage.split()[2]: stage for stage in found}


def all_commands() -> list[tuple[str, list[str]]]:
    """Where each command stands, and its words; the agent image's entry point waits for its arguments."""
    return [
        *((f"compose {name}", command(name)) for name in SERVICES if command(name)),
        *((path.name, entry) for path in SCRIPTS for entry in script_commands(path)),
        *((path.name, entry) for path in UNITS for entry in unit_commands(path)),
        *(("Dockerfile", entry) for entry in image_commands() if len(entry) > 1),
    ]


def parse_plimsoll(arguments: list[str]) -> None:
    """What the CLI does before it runs a command; raises UsageError for what it does not know."""
    found: Any = root_command()
    context = found.make_context(
        "plimsoll", list(arguments), obj=CliContext(environment={}, home=ROOT)
    )
    while hasattr(found, "resolve_command"):
        name, found, rest = found.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        context = found.make_context(name, rest, parent=context)


def parse_agent(arguments: list[str]) -> None:
    """What the agent's command does first; `restore` without a journal does nothing more."""
    if arguments[0] == "restore":
        assert restore(arguments[1:]) == 0
    else:
        make_parser().parse_args(arguments)


PARSERS: dict[str, Callable[[list[str]], object]] = {
    "plimsoll": parse_plimsoll,
    "plimsoll-agent": parse_agent,
}


def test_every_command_is_one_that_the_program_takes_and_wrong_ones_would_be_seen() -> (
    None
):
    programs = []
    for place, (program, *arguments) in all_commands():
        programs.append(program)
        # systemd puts the machine's short name there.
        known = [word.replace("%l", "gpu-1") for word in arguments]
        try:
            PARSERS.get(program, lambda _: None)(known)
        except (Exception, SystemExit) as error:
            pytest.fail(f"{place}: {program} {known}: {error!r}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(PARSERS) <= set(project["scripts"])
    assert programs.count("plimsoll-agent") == 5
    assert programs.count("plimsoll") >= 8
    for wrong in (["serve", "--no-such-flag"], ["db", "nonsense"], ["nonsense"]):
        with pytest.raises(Exception, match=r"(?i)no such"):
            parse_plimsoll(wrong)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_is_bounded_supervised_and_unprivileged(name: str) -> None:
    service = SERVICES[name]
    limits = service["deploy"]["resources"]["limits"]
    assert {"cpus", "memory"} <= set(limits)
    assert service["restart"] == ("no" if name in ENDING else "unless-stopped")
    assert service["healthcheck"], "asked, or told not to be"
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    if name in ENDING | LOADS:
        assert service["healthcheck"] == {"disable": True}
    else:
        assert "test" in service["healthcheck"]
    if name != "postgres":
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["init"] is True


def test_whoever_needs_an_ending_service_waits_for_its_end() -> None:
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            expected = (
                "service_completed_successfully"
                if needed in ENDING
                else "service_healthy"
            )
            assert how["condition"] == expected, (name, needed)
            assert name in FAKE or needed not in FAKE, (
                "a service without that profile does not start"
            )


def test_the_profile_with_fake_gpus_and_nothing_else_has_a_profile_and_its_image() -> (
    None
):
    for name, service in SERVICES.items():
        assert service.get("profiles", []) == (["fake-gpus"] if name in FAKE else []), (
            name
        )
    build = SERVICES["agent-h100"]["build"]
    assert (ROOT / build["dockerfile"]).samefile(ROOT / "deploy" / "Dockerfile")
    started = fake_node.make_parser().parse_args(
        words(SERVICES["agent-h100"]["command"])
    )
    assert f"fake_node.py build {started.library}" in stages()["fake-driver"]
    assert stages()[build["target"]].startswith("agent AS "), (
        "the production image and what is a fake"
    )


def test_what_the_compose_file_names_exists() -> None:
    COMPOSE.validate()
    document = COMPOSE.to_dict()
    used = set()
    for service in SERVICES.values():
        assert service.get("build", {}).get("target", "server") in stages()
        for volume in map(str, service.get("volumes", [])):
            source, target = volume.split(":")[:2]
            if source.startswith("."):
                assert (ROOT / source).is_dir(), volume
                named = [
                    word
                    for word in words(service["command"])
                    if word.startswith(f"{target}/")
                ]
                assert all(
                    (ROOT / source / Path(word).relative_to(target)).is_file()
                    for word in named
                ), named
            else:
                used.add(source)
    assert used == set(document["volumes"])


def test_every_address_is_that_of_a_service_at_a_port_where_it_listens() -> None:
    ports = {"control-plane": "8080", "postgres": "5432"} | {
        name: str(make_parser().parse_args(command(name)[1:]).router_port)
        for name in SERVICES
        if "agent-" in name
    }
    text = (ROOT / "docker-compose.yml").read_text()
    found = set(re.findall(r"(?:http://|@)([a-z0-9-]+):(\d+)", text))
    assert found >= {("control-plane", "8080"), ("agent-h100", "8000")}
    assert all(host == "127.0.0.1" or ports[host] == port for host, port in found), (
        found
    )


def test_environments_name_settings_that_there_are() -> None:
    known = {f"PLIMSOLL_{name.upper()}" for name in Settings.model_fields}
    image = dict(re.findall(r"(PLIMSOLL_\w+)=(\S+)", DOCKERFILE))
    given = {
        name for each in SERVICES.values() for name in each.get("environment", {})
    } | set(image)
    assert {name for name in given if name.startswith("PLIMSOLL_")} <= known


def test_images_of_the_product_hold_no_test_code() -> None:
    def contents(stage: str) -> str:
        text = stages()[stage]
        others = [text.split()[0], *re.findall(r"from=([a-z-]+)", text)]
        return text + "".join(contents(each) for each in others if each in stages())

    assert "COPY tests/agents/fakes" in contents("fake-gpus")
    assert not re.search(r"tests|gcc", contents("agent") + contents("server"))


def test_no_file_of_the_repository_holds_a_password() -> None:
    texts = [
        (ROOT / "docker-compose.yml").read_text(),
        DOCKERFILE,
        *(path.read_text() for path in (*SCRIPTS, *UNITS)),
    ]
    for text in texts:
        assert not re.search(r"(?i)(password|secret|token)\s*[:=]\s*[\"']?\w{6,}", text)
        assert not re.search(r"://[^/\s@]+:[^/\s@]+@", text), "a password in a URL"
        assert "HOST_AUTH_METHOD" not in text


def test_only_the_prepared_secrets_reach_a_service() -> None:
    """An agent must not see the admin's token, nor the load generator any."""
    mounted = {
        name: {str(volume).partition(":")[0] for volume in service.get("volumes", [])}
        for name, service in SERVICES.items()
    }
    assert {name for name, volumes in mounted.items() if "admin" in volumes} == {
        "secrets",
        "migrate",
        "control-plane",
        "deploy",
        "deploy-h100",
    }
    assert {
        name for name, volumes in mounted.items() if "database-password" in volumes
    } == {"secrets", "postgres"}
    for name in LOADS:
        assert mounted[name].isdisjoint(COMPOSE.to_dict()["volumes"])


def test_agents_load_and_manifests_agree() -> None:
    manifests = read_manifests(sorted((ROOT / "deploy" / "testbed").glob("*.yaml")))
    nodes = {
        entry.manifest.metadata.name: entry.manifest.spec
        for entry in manifests
        if isinstance(entry.manifest, NodeManifest)
    }
    services = {
        entry.manifest.metadata.name: entry.manifest.spec
        for entry in manifests
        if isinstance(entry.manifest, ServiceManifest)
    }
    agents = [
        make_parser().parse_args(command(name)[1:])
        for name in ("agent-v100", "agent-t4", "agent-h100")
    ]
    fake = fake_node.make_parser().parse_args(words(SERVICES["agent-h100"]["command"]))
    agents[2].gpus = fake.gpus
    assert {agent.node: [agent.gpu_type] * agent.gpus for agent in agents} == {
        name: [gpu.gpu_type for gpu in spec.gpus] for name, spec in nodes.items()
    }
    assert {agent.gpu_type for agent in agents} <= {
        gpu_type.name for gpu_type in load_gpu_types()
    }
    assert {spec.network for spec in services.values()} <= set(list_networks())
    loads = [
        load_http.make_parser().parse_args(command(name)[3:]) for name in sorted(LOADS)
    ]
    assert {service for load in loads for service in dict(load.load)} == set(services)
    for agent in agents[:2]:
        make_device(agent, ManualClock())


def test_images_run_as_a_user_of_their_own_from_pinned_parts() -> None:
    assert re.search(r"useradd --uid (\d+)", DOCKERFILE)
    assert "USER 10001:10001" in stages()["runtime"]
    assert {"agent", "server"} <= set(stages())
    for name in ("agent", "server", "fake-gpus"):
        last = [
            line
            for line in stages()[name].splitlines()
            if line.startswith(("USER", "RUN"))
        ]
        assert not last, "nothing runs as root after the user was set"
    assert "--extra" not in stages()["agent-installed"]
    bases = [
        stage.split()[0]
        for stage in stages().values()
        if stage.split()[0] not in stages()
    ]
    assert bases == ["python:3.11-slim-bookworm"], "one base, with its version"


def test_a_container_finds_the_kernels_that_its_image_brings() -> None:
    compiled = re.search(
        r"NUMBA_CACHE_DIR=(\S+) \S+python -c .*\n.*warm_up\(\)", DOCKERFILE
    )
    used = re.search(r"^ENV .*NUMBA_CACHE_DIR=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert compiled and used and 'ENTRYPOINT ["plimsoll-start"]' in DOCKERFILE
    assert (
        f'cp -R {compiled[1]} "$NUMBA_CACHE_DIR"'
        in (ROOT / "deploy" / "start.sh").read_text()
    )
    # The one place that a read-only container may write to and that is empty at its start.
    assert str(Path(used[1]).parent) in words(SERVICES["control-plane"]["tmpfs"])


def test_everything_that_an_image_copies_exists_and_is_let_through() -> None:
    allowed = [
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        for source in line.split():
            assert (ROOT / source).exists(), source
            assert any(fnmatch.fnmatch(source, pattern) for pattern in allowed), source


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_restart_drop_privileges_and_bound_their_memory(path: Path) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(path.read_text())
    service = unit["Service"]
    assert service["Restart"] in ("always", "on-failure")
    assert service["NoNewPrivileges"] == "yes"
    assert service["MemoryMax"]
    # Root is for who must become another user, with the rights for that and no others.
    if service.get("User") == "root":
        assert service["CapabilityBoundingSet"].split() == list(RIGHTS)


@pytest.mark.parametrize("name", ["worker", "trainer"])
def test_the_agents_image_can_run_what_templates_name(name: str) -> None:
    """Its distribution has no `plimsoll`, which needs the control plane's packages."""
    code = (
        "import sys; sys.modules |= dict.fromkeys(('app', 'typer', 'fastapi')); "
        f"from agents.main import main; main(['{name}', '--help'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0 and f"plimsoll {name}" in done.stdout, done.stderr


def test_images_say_what_they_are() -> None:
    """As the package says it; with the version that manifests name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "deploy/Dockerfile").read_text()
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', text))
    assert labels == {
        "title": project["name"],
        "version": project["version"],
        "licenses": project["license"],
        "description": project["description"],
    }
    for path in (ROOT / "deploy/kubernetes").rglob("kustomization.yaml"):
        for each in yaml.safe_load(path.read_text()).get("images", []):
            assert each["newTag"] == project["version"], path
