"""`plimsoll-agent mig list|apply|clear`: the slices of this node's GPUs, seen and changed.

    plimsoll-agent mig list [--state-dir DIR]
    plimsoll-agent mig apply --state-dir DIR --gpu UUID --layout 3g.71gb,1g.18gb [--dry-run]
    plimsoll-agent mig clear --state-dir DIR --gpu UUID [--dry-run]

Only an idle GPU in MIG mode is changed, while no agent runs with the state directory; the agent takes up the new slices
when it starts. Exit codes: 0 done, or nothing to do; 1 refused or failed, and the output says which layout the GPU has;
2 wrong arguments.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from agents.base.device import DeviceError, NotPermitted, UnknownPart
from agents.base.durable_files import read_boot_id
from agents.gpu.mig.change import change, check_mode, objection, slices_of
from agents.gpu.mig.idle import held, users
from agents.gpu.mig.journal import MigJournal
from agents.gpu.mig.layout import Wanted, names_of, parse, room
from agents.gpu.node.devices import Devices
from agents.gpu.nvml.mig_types import InUse
from agents.gpu.nvml.session import Nvml
from agents.gpu.nvml.types import GpuIdentity

RIGHT = "run this as root, or give the user access to /proc/driver/nvidia/capabilities/mig/config"
EXAMPLES = """\
examples:
  plimsoll-agent mig list --state-dir /var/lib/plimsoll-agent
  plimsoll-agent mig apply --state-dir /var/lib/plimsoll-agent --gpu GPU-1a2b... --layout 3g.71gb,2g.35gb,1g.18gb
  plimsoll-agent mig clear --state-dir /var/lib/plimsoll-agent --gpu GPU-1a2b... --dry-run
"""


def main(arguments: Sequence[str]) -> int:
    """Carry one of the three commands out; the exit code."""
    options = make_parser().parse_args(arguments)
    try:
        with Nvml() as nvml:
            for line in _lines(options, nvml):
                sys.stdout.write(f"{line}\n")
    except NotPermitted as error:
        sys.stderr.write(f"plimsoll-agent mig: {error}; {RIGHT}\n")
        return 1
    except (DeviceError, OSError) as error:
        sys.stderr.write(f"plimsoll-agent mig: {error}\n")
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="plimsoll-agent mig",
        description="See and change the slices (MIG) of this node's GPUs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(
        dest="verb", required=True, metavar="list|apply|clear"
    )
    listing = verbs.add_parser(
        "list", help="every GPU, its slices, and which others there is room for"
    )
    listing.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="of the agent; tells changes that were cut off",
    )
    for verb, summary in (
        ("apply", "give a GPU this layout in place of the one it has"),
        ("clear", "leave no slice"),
    ):
        each = verbs.add_parser(verb, help=summary)
        each.add_argument(
            "--state-dir", type=Path, metavar="DIR", required=True, help="of the agent"
        )
        each.add_argument(
            "--mps-dir",
            type=Path,
            metavar="DIR",
            help="of MPS' sockets (default: STATE_DIR/mps)",
        )
        each.add_argument(
            "--gpu", metavar="UUID", required=True, help="as `list` shows it"
        )
        each.add_argument(
            "--dry-run",
            action="store_true",
            help="say what would be done, and change nothing",
        )
        if verb == "apply":
            each.add_argument(
                "--layout",
                metavar="PROFILES",
                required=True,
                help="e.g. 3g.71gb,1g.18gb,1g.18gb",
            )
    return parser


def _lines(options: argparse.Namespace, nvml: Nvml) -> Iterator[str]:
    # Listing takes no lock, so that it works alongside a running agent.
    if options.verb == "list":
        yield from _list(nvml)
        if options.state_dir is not None:
            yield from _cut_off(MigJournal(options.state_dir, boot_id=read_boot_id()))
    else:
        yield from _change(options, nvml)


def _list(nvml: Nvml) -> Iterator[str]:
    devices = Devices(nvml)
    for gpu in devices.entire_gpus:
        try:
            mode = "MIG on" if nvml.is_sliced(gpu) else "MIG off"
        except DeviceError as error:
            yield f"GPU {gpu.index}  {gpu.uuid}  {gpu.name}: {error}"
            continue
        yield f"GPU {gpu.index}  {gpu.uuid}  {gpu.name}  {mode}"
        # Slices are listed for a GPU in MIG mode alone: another one answers with an error.
        if mode == "MIG on":
            yield from _list_slices(nvml, gpu, devices.gpus())


def _list_slices(
    nvml: Nvml, gpu: GpuIdentity, devices: tuple[GpuIdentity, ...]
) -> Iterator[str]:
    slices = [
        each
        for each in devices
        if each.part is not None and each.part.parent.uuid == gpu.uuid
    ]
    for each in slices:
        profile = each.part.profile if each.part else ""
        yield f"  slice {each.index}  {profile:<9}  {each.sm_count:>3} SMs  {each.memory_mib:>6g} MiB  {each.uuid}"
    if not slices:
        yield "  no slice"
    profiles = nvml.mig_profiles(gpu)
    yield f"  can have: {room({each.name: each.max_count for each in profiles})}"
    # Not every user is told how much room is left.
    if all(each.free_count is not None for each in profiles):
        yield f"  room now: {room({each.name: each.free_count or 0 for each in profiles})}"


def _cut_off(journal: MigJournal) -> Iterator[str]:
    for cut in journal.all():
        before = ",".join(each.profile for each in cut.before) or "no slice"
        yield (
            f"a change of {cut.gpu_uuid} was cut off: it had {before}, {','.join(cut.wanted) or 'no slice'} was "
            "wanted; run `mig apply` or `mig clear` for it again"
        )


def _change(options: argparse.Namespace, nvml: Nvml) -> Iterator[str]:
    devices = Devices(nvml)
    gpu = _find(devices.entire_gpus, options.gpu)
    # While this holds the records no agent can start on slices that are about to go.
    with held(options.state_dir) as records:
        journal = MigJournal(options.state_dir, boot_id=read_boot_id())
        check_mode(nvml, gpu)
        wanted: Wanted = (
            parse(options.layout, nvml.mig_profiles(gpu))
            if options.verb == "apply"
            else ()
        )
        before = slices_of(nvml, gpu)
        mps_dir = options.mps_dir or options.state_dir / "mps"
        # A user of a slice would lose its memory without a word.
        if reason := users(nvml, gpu, devices.gpus(), records=records, mps_dir=mps_dir):
            raise InUse(reason)
        if not options.dry_run:
            yield change(nvml, gpu, wanted, journal)
            return
        if reason := objection(nvml, gpu, wanted):
            raise DeviceError(reason)
        yield (
            f"GPU {gpu.index} would get {names_of(wanted) or 'no slice'} in place of "
            f"{','.join(each.profile for each in before) or 'no slice'}; nothing was changed"
        )


def _find(gpus: tuple[GpuIdentity, ...], uuid: str) -> GpuIdentity:
    for gpu in gpus:
        if gpu.uuid == uuid:
            return gpu
    raise UnknownPart(
        f"no GPU {uuid}; this node has {', '.join(gpu.uuid for gpu in gpus)}"
    )
