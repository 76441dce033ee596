"""NVIDIA's catalogue of Xids: what each number asks for."""

import pytest

from agents.gpu.nvml.xids import NAMES, XidAction, action_of

IGNORE, APP, RESET = XidAction.IGNORE, XidAction.RESTART_APP, XidAction.RESET_GPU
SUPPORT, DECODE = XidAction.CONTACT_SUPPORT, XidAction.DECODE

# By hand from the column "Immediate Action" of
# https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html; not by the ranges that the module has.
ASKS = {
    **dict.fromkeys((37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108), IGNORE),
    **dict.fromkeys((121, 137, 141, 152, 153, 157, 160, 161), IGNORE),
    **dict.fromkeys((8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 77), APP),
    **dict.fromkeys((80, 82, 86, 88, 89, 94, 96, 101, 105, 126, 135, 139), APP),
    **dict.fromkeys((46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143), RESET),
    **dict.fromkeys((155, 156, 158), RESET),
    # A workflow in the catalogue: alone, a reset.
    48: RESET,
    45: XidAction.FOLLOW,
    154: XidAction.FOLLOW,
    54: XidAction.CHECK_BOARD,
    78: XidAction.UPDATE,
    79: XidAction.RESTART_NODE,
    151: XidAction.RESTART_NODE,
    **dict.fromkeys(range(144, 151), DECODE),
    # Unused ones.
    **dict.fromkeys((1, 7, 9, 12, 20, 30, 42, 49, 61, 65, 81, 90, 91, 118), SUPPORT),
    **dict.fromkeys((122, 125, 138, 142), SUPPORT),
    # None that it has.
    **dict.fromkeys((167, 169, 500, 10_000), SUPPORT),
}
IN_USE = (IGNORE, APP, XidAction.FOLLOW)


@pytest.mark.parametrize(("xid", "action"), ASKS.items())
def test_each_xid_asks_for_what_the_catalogue_says(xid: int, action: XidAction) -> None:
    assert action_of(xid) is action
    assert action.condemns is (action not in IN_USE)


def test_what_has_words_is_a_number_of_the_catalogue() -> None:
    assert NAMES and not [xid for xid in NAMES if action_of(xid) is SUPPORT]
