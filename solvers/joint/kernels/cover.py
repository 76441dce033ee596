"""Depth-first search for a cheap cover: which few whole GPUs carry what is wanted, for less than a goal.

Rows are what is wanted: rps and replicas of each service. A node has chosen some columns; it branches on the row that
is worth most at the duals, over the columns that carry some of it, least loss first. The loss of a column is what it
costs beyond what its useful part is worth at the duals; what is useful shrinks as rows are met, so that losses only
grow, and

    cost so far + Σ duals · what is left of each limit

bounds all that follows from below (Lagrange at the duals of the root). A node that cannot stay below the goal is cut.
Where the duals are those of the relaxation, the sum of losses that a plan may have is its distance from the relaxation:
tens of thousands of such nodes take the time of ten nodes of a general integer program.
"""

from typing import NamedTuple

import numpy as np

from solvers.joint.kernels.compiled import compiled
from solvers.joint.kernels.types import Numbers, Reals

MAX_DEPTH = 48
"""Choices on a branch; longer plans are not looked for."""
_MET = 1e-9


class CoverProblem(NamedTuple):
    """A covering problem: S services, C columns of at most N replicas, G types."""

    service: Numbers
    """(C, N) S where there are no more replicas."""
    capacity: Reals
    """(C, N)"""
    price: Reals
    gpu_type: Numbers
    """(C,)"""
    first: Numbers
    """(S + 1,) where the columns of each service begin in `of_service`."""
    of_service: Numbers
    """Columns of each service, end to end."""
    need: Reals
    """(2, S + 1) rps and replicas that are wanted; 0 at S."""
    shortage_price: Reals
    """(2, S + 1) of one rps, and of one replica, that is not there."""
    max_replicas: Reals
    """(S + 1,) replicas that may be; infinite without limit, and at S."""
    stock: Reals
    """(G,)"""
    worth: Reals
    """(2, S + 1) duals of what is wanted, ≥ 0; 0 at S."""
    max_price: Reals
    """(S + 1,) duals of `max_replicas`, ≤ 0; 0 at S."""
    stock_price: Reals
    """(G,) duals of the stock, ≤ 0."""


class CoverPath(NamedTuple):
    """The path to the node at hand, by depth."""

    need: Reals
    """(D + 1, 2, S + 1) what is left to do."""
    room: Reals
    """(D + 1, S + 1) what is left of `max_replicas`."""
    stock: Reals
    """(D + 1, G)"""
    cost: Reals
    bound: Reals
    child: Numbers
    """(D, W) choices, least loss first; −1 is to leave the row unmet."""
    loss: Reals
    """(D, W)"""
    children: Numbers
    tried: Numbers
    row: Numbers
    """(D,) the row that the node branches on."""
    chosen: Numbers
    slack: Numbers
    """(D + 1,) how many places down their lists the choices that follow may go in all."""


@compiled
def cover(
    task: CoverProblem, goal: float, nodes: int, discrepancies: int, best: Numbers
) -> tuple[float, int]:
    """(cost with shortages, number of columns) of the best cover below the goal, which goes into `best`; −1 if none.

    nodes: how many are looked at; discrepancies: how many places down their lists the choices of one branch may go.
    """
    branch = _root(task, discrepancies + 1)
    depth, visited, size = 0, 0, -1
    _open(task, branch, 0, goal)
    while depth >= 0:
        at, below = branch.tried[depth], depth + 1
        if not _may_try(branch, depth, at, goal):
            depth -= 1
            continue
        branch.tried[depth] = at + 1
        visited += 1
        if visited > nodes:
            break
        # The further down its list a choice stands, the closer to the best ones those after it must keep.
        branch.slack[below] = branch.slack[depth] - at
        _take(task, branch, depth, branch.child[depth, at])
        is_met = branch.need[below].max() <= _MET
        if is_met and branch.cost[below] < goal:
            goal, size = branch.cost[below], _copy_chosen(branch, depth, best)
        elif not is_met and below < MAX_DEPTH and branch.bound[below] < goal:
            depth = below
            _open(task, branch, depth, goal)
    return goal, size


@compiled
def _may_try(branch: CoverPath, depth: int, at: int, goal: float) -> bool:
    """Whether a node has that choice, and it may lead below the goal."""
    if at >= branch.children[depth] or at > branch.slack[depth]:
        return False
    return branch.bound[depth] + branch.loss[depth, at] < goal


@compiled
def _copy_chosen(branch: CoverPath, depth: int, columns: Numbers) -> int:
    """Copy the columns that the path has chosen; returns how many."""
    size = 0
    for level in range(depth + 1):
        if branch.chosen[level] >= 0:
            columns[size] = branch.chosen[level]
            size += 1
    return size


@compiled
def _root(task: CoverProblem, width: int) -> CoverPath:
    branch = _empty_path(task, width)
    branch.need[0], branch.room[0] = task.need, task.max_replicas
    branch.stock[0] = task.stock
    branch.slack[0] = width - 1
    branch.bound[0] = _bound(task, branch, 0)
    return branch


@compiled
def _empty_path(task: CoverProblem, width: int) -> CoverPath:
    deep, services = MAX_DEPTH + 1, task.need.shape[1]
    cost, bound = np.zeros((2, deep))
    children, tried, row, chosen, slack = np.zeros((5, deep), np.int32)
    return CoverPath(
        np.zeros((deep, 2, services)),
        np.zeros((deep, services)),
        np.zeros((deep, task.stock.shape[0])),
        cost,
        bound,
        np.zeros((deep, width), np.int32),
        np.zeros((deep, width)),
        children,
        tried,
        row,
        chosen,
        slack,
    )


@compiled
def _bound(task: CoverProblem, branch: CoverPath, depth: int) -> float:
    """What every cover that follows costs at least."""
    total = branch.cost[depth]
    for service in range(task.need.shape[1]):
        for kind in range(2):
            total += task.worth[kind, service] * branch.need[depth, kind, service]
        # Room may be infinite where its price is 0, and 0 times infinity is no number.
        if task.max_price[service] < 0.0:
            total += task.max_price[service] * branch.room[depth, service]
    for gpu_type in range(task.stock.shape[0]):
        if task.stock_price[gpu_type] < 0.0:
            total += task.stock_price[gpu_type] * branch.stock[depth, gpu_type]
    return total


@compiled
def _open(task: CoverProblem, branch: CoverPath, depth: int, goal: float) -> None:
    """List the choices of a node, least loss first."""
    row = _choose_row(task, branch.need[depth])
    branch.row[depth], branch.tried[depth], branch.children[depth] = row, 0, 0
    budget = goal - branch.bound[depth]
    # Two columns for one row in either order are the same plan: the second one follows in the list.
    again = depth > 0 and branch.row[depth - 1] == row and branch.chosen[depth - 1] >= 0
    first = branch.chosen[depth - 1] if again else 0
    for at in range(task.first[row], task.first[row + 1]):
        column = task.of_service[at]
        if column >= first:
            loss = _loss(task, branch, depth, column)
            if loss < budget:
                _insert(branch, depth, column, loss)

    unmet = 0.0
    for kind in range(2):
        loss_of_one = task.shortage_price[kind, row] - task.worth[kind, row]
        unmet += loss_of_one * branch.need[depth, kind, row]
    if unmet < budget:
        _insert(branch, depth, -1, unmet)


@compiled
def _choose_row(task: CoverProblem, need: Reals) -> int:
    """The service whose unmet need is worth most: meeting it moves the bound most."""
    row, top = 0, 0.0
    for service in range(need.shape[1] - 1):
        value = 0.0
        for kind in range(2):
            # A little more than the dual, so that a need with dual 0 is worth something as well.
            if need[kind, service] > _MET:
                value += (task.worth[kind, service] + 1e-9) * need[kind, service]
        if value > top:
            row, top = service, value
    return row


@compiled
def _loss(task: CoverProblem, branch: CoverPath, depth: int, column: int) -> float:
    """What the column costs beyond its worth here; infinite where it is not possible."""
    gpu_type = task.gpu_type[column]
    if branch.stock[depth, gpu_type] < 1.0:
        return np.inf
    loss = task.price[column] - task.stock_price[gpu_type]
    for at in range(task.service.shape[1]):
        service = task.service[column, at]
        if service == task.need.shape[1] - 1:
            break
        if branch.room[depth, service] < 1.0:
            return np.inf
        # What a column carries beyond the need is worth nothing.
        rps = min(task.capacity[column, at], branch.need[depth, 0, service])
        presence = min(1.0, branch.need[depth, 1, service])
        loss -= task.worth[0, service] * rps
        loss -= task.worth[1, service] * presence + task.max_price[service]
    return loss


@compiled
def _insert(branch: CoverPath, depth: int, column: int, loss: float) -> None:
    """Put a choice among those of the node, least loss first; no more than the slack lets anyone try."""
    place, losses, child = (
        branch.children[depth],
        branch.loss[depth],
        branch.child[depth],
    )
    if place <= branch.slack[depth]:
        branch.children[depth] = place + 1
    elif losses[place - 1] <= loss:
        return
    else:
        # The worst one makes room.
        place -= 1
    while place > 0 and losses[place - 1] > loss:
        losses[place], child[place] = losses[place - 1], child[place - 1]
        place -= 1
    losses[place], child[place] = loss, column


@compiled
def _take(task: CoverProblem, branch: CoverPath, depth: int, column: int) -> None:
    """The child's state."""
    below = depth + 1
    branch.chosen[depth] = column
    branch.need[below], branch.room[below] = branch.need[depth], branch.room[depth]
    branch.stock[below], branch.cost[below] = branch.stock[depth], branch.cost[depth]
    if column < 0:
        _give_up(task, branch, below, branch.row[depth])
    else:
        _use_column(task, branch, below, column)
    branch.bound[below] = _bound(task, branch, below)


@compiled
def _give_up(task: CoverProblem, branch: CoverPath, depth: int, row: int) -> None:
    """Leave what a service still needs unmet, and pay for it."""
    for kind in range(2):
        unmet = branch.need[depth, kind, row]
        branch.cost[depth] += task.shortage_price[kind, row] * unmet
        branch.need[depth, kind, row] = 0.0


@compiled
def _use_column(task: CoverProblem, branch: CoverPath, depth: int, column: int) -> None:
    need = branch.need[depth]
    branch.cost[depth] += task.price[column]
    branch.stock[depth, task.gpu_type[column]] -= 1.0
    for at in range(task.service.shape[1]):
        service = task.service[column, at]
        if service == task.need.shape[1] - 1:
            break
        left = need[0, service] - task.capacity[column, at]
        # A rest that is rounding must not ask for one more GPU.
        need[0, service] = left if left > _MET * task.need[0, service] else 0.0
        need[1, service] = max(0.0, need[1, service] - 1.0)
        branch.room[depth, service] -= 1.0
