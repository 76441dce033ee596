"""What was applied changes nothing when it is applied again, nor does what `get -o yaml` prints: every kind and field.

Each kind has one manifest or a few that together state every field; each is applied as it is, and without one field
after the other.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from app.cli.common.kinds import find_kind
from app.cli.common.manifest_files import KINDS
from tests.app.runner import Result, cli
from tests.integration.api_harness import Api, gpu_type, network, profile

pytestmark = pytest.mark.integration

ROW = [50.0, 1, 1000.0, 0.5, 0.5, 5.0, 2000.0, 50.0, 0.3]
LABELS = {"labels": {"team": "vision"}, "annotations": {"note": "x: y"}}

SPECS: dict[str, list[dict[str, Any]]] = {
    "Project": [
        {
            "description": "Pictures",
            "quota": {
                "max_priority": "critical",
                "max_replicas": 900,
                "max_gpus": 900,
                "max_simulations": 3,
            },
        }
    ],
    "GpuType": [
        {
            "price_usd_per_hour": 1.25,
            "memory_mib": 16384,
            "sm_count": 40,
            "sm_percent_step": 5,
            "idle_w": 10,
            "power_cap_w": 70,
            "clocks_mhz": [600, 1200],
            "launch_per_neighbour": 0.1,
            "launch_base": 0.2,
            "llm": {
                "memory_gb_per_s": 300,
                "bf16_tflops": 65,
                "fp8_tflops": 130,
                "fp4_tflops": 260,
                "link_gb_per_s": 32,
            },
            "paid": "all",
        },
        {
            "price_usd_per_hour": 1.234567,
            "memory_mib": 1,
            "idle_w": 0,
            "power_cap_w": 1,
            "clocks_mhz": [1],
            "paid": 3,
        },
    ],
    "Node": [
        {
            "gpus": [{"index": 1, "gpu_type": "T4"}, {"index": 0, "gpu_type": "T4"}],
            "cordoned": True,
            "power_cap_w": 500,
        }
    ],
    "Network": [
        {
            "description": "A network",
            "parameter_bytes": 1000,
        },
        {
            "runs": [
                {
                    "gpu_type": gpu_type,
                    "tp": 2,
                    "dtype": "fp8",
                    "clients": 4,
                    "prompt_tokens": 200.5,
                    "output_tokens": 100,
                    "tpot_ms": 12.5,
                }
                for gpu_type in ("T4", "L4")
            ],
        },
    ],
    "Profile": [
        {
            "network": "resnet50",
            "gpu_type": "T4",
            "sensitivity": 0.3,
            "provenance": "estimated",
            "latency_sigma": 0.1,
            "rows": [ROW, [100.0, 1, 1000.0, 0.5, 0.5, 3.0, 2000.0, 60.0, 0.3]],
        },
        {
            "network": "resnet50",
            "gpu_type": "T4",
            "latency_sigma": [0.2, None],
            "stall_ms": [0.5, 0.25],
            "rows": [ROW, [100.0, 1, 1000.0, 0.5, 0.5, 3.0, 2000.0, 60.0, 0.3]],
        },
    ],
    "Service": [
        {
            "kind": "inference",
            "network": "resnet50",
            "variants": [
                {"network": "resnet50", "accuracy": 0.76},
                {"network": "alexnet", "accuracy": 0.56},
            ],
            "accuracy_floor": 0.5,
            "slo": {"latency_ms": 200, "percentile": 0.95, "budget": "keep"},
            "scaling": {
                "min_replicas": 1,
                "max_replicas": 3,
                "upscale_delay_s": 1,
                "downscale_delay_s": 30,
                "buffer_replicas": 1,
            },
            "priority": "critical",
            "gpu_types": {"allowed": ["T4", "A10G", "T4"], "excluded": []},
            "mode": "advise",
            "anti_affinity": ["b", "a"],
            "survive": "gpu",
            "survive_share": 0.75,
        },
        {
            "network": "resnet50",
            "slo": {"latency_ms": 200},
            "gpu_types": {"excluded": ["T4", "A10G", "T4"]},
            "survive": "node",
        },
        {
            "kind": "llm",
            "network": "Llama-3.1-8B-Instruct",
            "slo": {
                "ttft_ms": 500,
                "itl_ms": 50,
                "itl": "request",
                "percentile": 0.9,
            },
            "llm": {
                "dtype": "fp8",
                "lengths": {"prompt": 300, "output": 200, "spread": 0.5},
                "max_model_len": 4096,
                "tp": 2,
            },
        },
        {
            "kind": "llm",
            "network": "Llama-3.1-8B-Instruct",
            "slo": {"ttft_ms": 500, "itl_ms": 50, "itl": "token"},
            "llm": {},
        },
    ],
    "Policy": [
        {
            "policy": "hetsev",
            "parameters": {"hetsev": {"queues": 8}},
            "mode": "approve",
            "paused": True,
            "period_s": 7.5,
            "objective": "max_goodput",
            "energy_price_usd_per_kwh": 0.3,
            "carbon_price_usd_per_t": 50,
            "carbon_g_per_kwh": 300,
            "max_replicas_per_gpu": 6,
            "migration_cost_usd_per_hour": 0.01,
            "target_attainment": 0.999,
            "survive": "zone",
            "survive_share": 0.6,
            "stale_after_s": 20,
            "solve_seconds": 1.5,
            "solve_work": 0.5,
            "seed": 7,
            "window_s": 2,
            "fit_quantile": 0.8,
            "learning": False,
            "start_price": 0.1,
            "min_dwell_s": 30,
            "governor": "power_latency",
            "power_budget_w": 9000,
            "groups": [
                {
                    "name": "vision",
                    "policy": "joint",
                    "projects": ["default", "another", "default"],
                    "labels": {"team": "vision"},
                    "mode": "advise",
                }
            ],
            "approve": "services",
            "approve_switch": True,
        },
        {"carbon_g_per_kwh": [float(hour) for hour in range(24)]},
    ],
    "Budget": [
        {
            "project": "default",
            "period": "day",
            "usd": 0.123456,
            "action": "degrade",
            "protected_priority": "standard",
        }
    ],
    "Webhook": [
        {
            "url": "https://example.com/hook?a=b",
            "kinds": ["GpuFailed", "BudgetSpent", "GpuFailed"],
            "enabled": False,
        }
    ],
    "Task": [
        {
            "kind": "training",
            "network": "resnet50-training",
            "batch": 8,
            "epochs": 2,
            "examples": 12800,
            "deadline_after_s": 36000,
            "priority": "standard",
            "weight": 0.75,
            "gpus": 1,
            "checkpoint_command": ["save", "--now"],
        },
        {
            "kind": "training",
            "batch": 8,
            "iterations": 1000,
            "layers": {"convolution": 3, "linear": 1},
            "memory_mib": 2000,
        },
        {
            "kind": "offline",
            "network": "resnet50",
            "batch": 8,
            "inputs": 100,
            "variants": [{"network": "resnet50", "accuracy": 0.7}],
            "accuracy_floor": 0.5,
        },
    ],
}
ONE_OF_A_KIND = {"Profile", "Policy"}
"""Each manifest of it changes the same object."""


def manifests(kind: str) -> Iterator[dict[str, Any]]:
    """Every manifest of the kind that may be written, each with a name of its own."""
    for spec in SPECS[kind]:
        for number, changed in enumerate([spec, *_without_a_field(spec)]):
            at = SPECS[kind].index(spec)
            name = "default" if kind in ONE_OF_A_KIND else f"x{at}-{number}"
            metadata = {"name": name} | (LABELS if number == 0 else {})
            found = {
                "apiVersion": "plimsoll/v1",
                "kind": kind,
                "metadata": metadata,
                "spec": changed,
            }
            if _is_valid(kind, found):
                yield found


def _without_a_field(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for key, entry in value.items():
        rest = copy.deepcopy(value)
        del rest[key]
        yield rest
        if isinstance(entry, dict):
            for changed in _without_a_field(entry):
                yield {**copy.deepcopy(value), key: changed}


def _is_valid(kind: str, manifest: dict[str, Any]) -> bool:
    try:
        KINDS[kind].model_validate(manifest)
    except ValidationError:
        return False
    return True


def run(api: Api, *arguments: str | Path) -> Result:
    environment = {"PLIMSOLL_TOKEN": api.secrets["admin"]}
    return cli(*arguments, api=api.forward, environment=environment)


def assert_kept(api: Api, folder: Path, found: list[dict[str, Any]]) -> None:
    """Applied twice, and applied as it is printed, it is the same."""
    file = folder / "written.yaml"
    file.write_text(yaml.safe_dump_all(found), encoding="utf-8")
    first = run(api, "apply", "-y", "--force", "-f", file)
    assert first.code == 0, first.out + first.err
    assert "does not keep" not in first.out
    printed = folder / "printed.yaml"
    answers = [run(api, "get", *_place(each), "-o", "yaml") for each in found]
    assert [answer.err for answer in answers] == [""] * len(found)
    printed.write_text("---\n".join(answer.out for answer in answers), encoding="utf-8")
    for again in (file, printed):
        result = run(api, "apply", "--dry-run", "-f", again)
        assert result.code == 0, result.out + result.err
        assert f"0 to create, 0 to change, {len(found)} unchanged" in result.out, (
            f"{again.name}\n{result.out}"
        )


def _place(manifest: dict[str, Any]) -> tuple[str, ...]:
    spec, name = manifest["spec"], manifest["metadata"]["name"]
    if manifest["kind"] == "Profile":
        name = f"{spec['network']}/{spec['gpu_type']}"
    return find_kind(manifest["kind"]).path, name


@pytest.mark.parametrize("kind", sorted(SPECS))
def test_what_was_applied_changes_nothing_when_it_is_applied_again(
    api: Api, tmp_path: Path, kind: str
) -> None:
    found = list(manifests(kind))
    assert found
    if kind == "Service":
        api.put("networks/alexnet", network("alexnet"))
        api.put("profiles/alexnet/T4", profile("alexnet"))
        api.put("gpu-types/A10G", gpu_type("A10G"))
    if kind == "Task":
        training = network("resnet50-training")
        labels = {"kind": "training"}
        training["metadata"] = {"name": "resnet50-training", "labels": labels}
        api.put("networks/resnet50-training", training)
        api.put("profiles/resnet50-training/T4", profile("resnet50-training"))
    if kind not in ONE_OF_A_KIND:
        assert_kept(api, tmp_path, found)
        return
    for each in found:
        assert_kept(api, tmp_path, [each])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_field_is_stated_by_some_manifest(kind: str) -> None:
    stated = set().union(*map(_paths, SPECS[kind]))
    fields = set(_fields(KINDS[kind].model_fields["spec"].annotation, ""))
    assert fields
    # A language model's own configuration is asked for by its network, which ships.
    assert {field for field in fields - stated if field != "config"} == set()


def _paths(value: object, path: str = "") -> set[str]:
    if isinstance(value, dict):
        below = (
            _paths(entry, f"{path}.{key}".strip(".")) for key, entry in value.items()
        )
        return {path}.union(*below)
    if isinstance(value, list):
        return {path}.union(*(_paths(entry, path) for entry in value))
    return {path}


def _fields(annotation: object, path: str) -> Iterator[str]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            here = f"{path}.{name}".strip(".")
            yield here
            yield from _fields(field.annotation, here)
    for argument in get_args(annotation):
        yield from _fields(argument, path)
