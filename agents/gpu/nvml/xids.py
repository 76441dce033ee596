"""NVIDIA's catalogue of Xids: what each critical error asks for, and so whether its GPU may still be used.

    action_of(79)      -> XidAction.RESTART_NODE
    name_of(79)        -> "Xid 79"; `NAMES` has words for those that are met most
    recovery_of(1)     -> RecoveryAction.GPU_RESET, which the driver itself asks for until it has happened

Source: the column "Immediate Action" of https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, of the
driver R590, for Ampere and newer. Older GPUs have a list of their own, which names fewer and asks for the same where
both have one. Numbers that the catalogue marks as unused, or does not have, condemn: newer drivers bring new ones, and
a broken GPU does more harm than an idle one.
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum, StrEnum


class XidAction(StrEnum):
    """What must be done, in words that follow "to"; from the mildest to the strongest."""

    IGNORE = "do nothing"
    FOLLOW = "see to the errors that it came with"
    DECODE = "reset the GPU, unless the fields of its message in the kernel's log say otherwise"
    """No event carries these fields. Where the driver tells a recovery action, that is the answer."""
    RESTART_APP = "restart the application that met it"
    UPDATE = "update driver and firmware"
    RESET_GPU = "reset the GPU"
    CHECK_BOARD = "check how the board is seated and supplied with power"
    CONTACT_SUPPORT = "contact the vendor's support"
    RESTART_NODE = "restart the machine"

    @property
    def condemns(self) -> bool:
        """Whether the GPU must not be used until that is done."""
        # Of those that have to be decoded the driver's recovery action is asked first.
        return self not in (XidAction.IGNORE, XidAction.FOLLOW, XidAction.RESTART_APP)

    @property
    def rank(self) -> int:
        """The higher, the stronger."""
        return list(XidAction).index(self)


MEMORY_ERROR = 0
"""An event of double-bit ECC, which has no number; it is Xid 48."""

_CATALOGUE: Mapping[XidAction, str] = {
    XidAction.IGNORE: "14 37-38 43-44 63 66-67 92-93 106-108 121 137 141 152-153 157 160-165",
    # 45: the programs of a GPU were ended, which another Xid explains. 154: the recovery action has changed.
    XidAction.FOLLOW: "45 154",
    # Errors of NVLink 5: from "ignore" to "reset".
    XidAction.DECODE: "144-150",
    XidAction.RESTART_APP: "8 11 13 25 31-32 39-41 60 68-72 75-77 80 82-86 88-89 94 96-105 126-135 139",
    XidAction.UPDATE: "78",
    # 171 and 172 tell more about a 48; 74: by its text a reset or a reboot; 159: with UVM, which CUDA uses.
    XidAction.RESET_GPU: "0 46 48 62 64 74 95 109-110 119-120 136 140 143 155-156 158-159 171-172",
    XidAction.CHECK_BOARD: "54",
    # 79: the GPU is off the bus; 151: of a virtual machine's keys.
    XidAction.RESTART_NODE: "79 151",
}
"""Numbers and ranges of them; all others: CONTACT_SUPPORT."""

NAMES: Mapping[int, str] = {
    13: "an exception of the graphics engine",
    31: "a page fault of GPU memory",
    43: "a program was ended by its own fault",
    45: "programs were ended after another error",
    48: "a double-bit ECC error",
    63: "a row of memory was remapped",
    64: "a row of memory could not be remapped",
    74: "an error of NVLink",
    79: "the GPU fell off the bus",
    94: "a memory error that was contained",
    95: "a memory error that was not contained",
    109: "a context switch that timed out",
    119: "the GPU's processor (GSP) does not answer",
    120: "an error of the GPU's processor (GSP)",
    140: "an ECC error without recovery",
    154: "the recovery action has changed",
}


def _numbers(text: str) -> Iterator[int]:
    for part in text.split():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


_ACTIONS = {
    number: action for action, text in _CATALOGUE.items() for number in _numbers(text)
}


def action_of(xid: int) -> XidAction:
    """What the catalogue asks for."""
    return _ACTIONS.get(xid, XidAction.CONTACT_SUPPORT)


def name_of(xid: int) -> str:
    """The error as people look it up."""
    if xid == MEMORY_ERROR:
        return "an error of memory that could not be corrected"
    return f"Xid {xid}"


class RecoveryAction(IntEnum):
    """What the driver asks for to clear a fault of a GPU: NVML's field 230, since the driver R565."""

    NONE = 0
    GPU_RESET = 1
    NODE_REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX_DOMAIN = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


_ASKED = {
    RecoveryAction.GPU_RESET: "reset the GPU",
    RecoveryAction.NODE_REBOOT: "restart the machine",
    RecoveryAction.DRAIN_P2P: "end what reaches it from other GPUs, then look again",
    RecoveryAction.DRAIN_AND_RESET: "drain the node, then reset the GPU",
    RecoveryAction.RECOVER_IMEX_DOMAIN: "recover its IMEX domain",
    RecoveryAction.BUS_RESET: "reset its bus",
    RecoveryAction.SYSTEM_REBOOT: "restart the entire system",
}
_CAN_WAIT = (
    RecoveryAction.NONE,
    RecoveryAction.DRAIN_P2P,
    # After an error that was contained: programs may be started, with a little less memory, until the reset.
    RecoveryAction.DRAIN_AND_RESET,
    RecoveryAction.RECOVER_IMEX_DOMAIN,
)


def recovery_of(number: int) -> RecoveryAction | int:
    """The action, or its number where it has no name here."""
    return RecoveryAction(number) if number in set(RecoveryAction) else number


def describe_recovery(action: RecoveryAction | int) -> str:
    """What must be done, in words that follow "to"."""
    if isinstance(action, RecoveryAction):
        return _ASKED.get(action, "do nothing")
    return f"take recovery action {action}, which is newer than this agent: see `nvidia-smi -q`"


def bars_use(action: RecoveryAction | int | None) -> bool:
    """Whether nothing may run on the GPU until that is done."""
    return action is not None and action not in _CAN_WAIT
