"""Depth-first search for a cheap cover: which few whole GPUs carry what is wanted, for less than a goal.

Rows are what is wanted: rps and replicas of each service. A node has chosen some columns; it branches on the row that
is dearest at the duals, over the columns that carry some of it, least loss first. The loss of a column is what it costs
beyond what its useful part is worth at the duals; what is useful shrinks as rows are met, so that losses only grow,
and

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
    most: Reals
    """(S + 1,) replicas that may be; infinite without limit, and at S."""
    stock: Reals
    """(G,)"""
    worth: Reals
    """(2, S + 1) duals of what is wanted, ≥ 0; 0 at S."""
    max_price: Reals
    """(S + 1,) duals of `most`, ≤ 0; 0 at S."""
    stock_price: Reals
    """(G,) duals of the stock, ≤ 0."""


class CoverPath(NamedTuple):
    """The path to the node at hand, by depth."""

    need: Reals
    """(D + 1, 2, S + 1) what is left to do."""
    room: Reals
    """(D + 1, S + 1) of `most`."""
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
    depth, seen, size = 0, 0, -1
    _open(task, branch, 0, goal, discrepancies + 1)
    while depth >= 0:
        at = branch.tried[depth]
        if (
            at >= branch.children[depth]
            or at > branch.slack[depth]
            or branch.bound[depth] + branch.loss[depth, at] >= goal
        ):
            depth -= 1
            continue
        branch.tried[depth] = at + 1
        seen += 1
        if seen > nodes:
            break
        branch.slack[depth + 1] = branch.slack[depth] - at
        _take(task, branch, depth, branch.child[depth, at])
        if _is_met(branch.need[depth + 1]):
            if branch.cost[depth + 1] < goal:
                goal, size = branch.cost[depth + 1], 0
                for level in range(depth + 1):
                    if branch.chosen[level] >= 0:
                        best[size] = branch.chosen[level]
                        size += 1
            continue
        if depth + 1 < MAX_DEPTH and branch.bound[depth + 1] < goal:
            depth += 1
            _open(task, branch, depth, goal, branch.slack[depth] + 1)
    return goal, size


@compiled
def _root(task: CoverProblem, width: int) -> CoverPath:
    deep, services = MAX_DEPTH + 1, task.need.shape[1]
    branch = CoverPath(
        np.zeros((deep, 2, services)),
        np.zeros((deep, services)),
        np.zeros((deep, task.stock.shape[0])),
        np.zeros(deep),
        np.zeros(deep),
        np.zeros((deep, width), np.int32),
        np.zeros((deep, width)),
        np.zeros(deep, np.int32),
        np.zeros(deep, np.int32),
        np.zeros(deep, np.int32),
        np.zeros(deep, np.int32),
        np.full(deep, width - 1, np.int32),
    )
    branch.need[0], branch.room[0], branch.stock[0] = task.need, task.most, task.stock
    branch.bound[0] = _bound(task, branch, 0)
    return branch


@compiled
def _bound(task: CoverProblem, branch: CoverPath, depth: int) -> float:
    """What every cover that follows costs at least."""
    total = branch.cost[depth]
    for service in range(task.need.shape[1]):
        for kind in range(2):
            total += task.worth[kind, service] * branch.need[depth, kind, service]
        if task.max_price[service] < 0.0:
            total += task.max_price[service] * branch.room[depth, service]
    for gpu_type in range(task.stock.shape[0]):
        if task.stock_price[gpu_type] < 0.0:
            total += task.stock_price[gpu_type] * branch.stock[depth, gpu_type]
    return total


@compiled
def _is_met(need: Reals) -> bool:
    return need.max() <= _MET


@compiled
def _open(
    task: CoverProblem, branch: CoverPath, depth: int, goal: float, width: int
) -> None:
    """List the choices of a node, least loss first."""
    need = branch.need[depth]
    row, top = 0, -1.0
    for service in range(need.shape[1] - 1):
        value = 0.0
        for kind in range(2):
            if need[kind, service] > _MET:
                value += (task.worth[kind, service] + 1e-9) * need[kind, service]
        if value > top and (need[0, service] > _MET or need[1, service] > _MET):
            row, top = service, value
    branch.row[depth], branch.tried[depth], branch.children[depth] = row, 0, 0
    budget = goal - branch.bound[depth]
    # Two columns for one row in either order are the same plan: the second one follows in the list.
    again = depth > 0 and branch.row[depth - 1] == row and branch.chosen[depth - 1] >= 0
    least = branch.chosen[depth - 1] if again else 0
    for at in range(task.first[row], task.first[row + 1]):
        column = task.of_service[at]
        if column >= least:
            loss = _loss(task, branch, depth, column)
            if loss < budget:
                _insert(branch, depth, column, loss, width)
    unmet = 0.0
    for kind in range(2):
        unmet += (task.shortage_price[kind, row] - task.worth[kind, row]) * need[
            kind, row
        ]
    if unmet < budget:
        _insert(branch, depth, -1, unmet, width)


@compiled
def _loss(task: CoverProblem, branch: CoverPath, depth: int, column: int) -> float:
    """What the column costs beyond its worth here; infinite where it is not possible."""
    gpu_type = task.gpu_type[column]
    loss = (
        task.price[column] - task.stock_price[gpu_type]
        if branch.stock[depth, gpu_type] >= 1.0
        else np.inf
    )
    for at in range(task.service.shape[1]):
        service = task.service[column, at]
        if service == task.need.shape[1] - 1:
            break
        if branch.room[depth, service] < 1.0:
            loss = np.inf
        loss -= task.worth[0, service] * min(
            task.capacity[column, at], branch.need[depth, 0, service]
        )
        loss -= (
            task.worth[1, service] * min(1.0, branch.need[depth, 1, service])
            + task.max_price[service]
        )
    return loss


@compiled
def _insert(
    branch: CoverPath, depth: int, column: int, loss: float, width: int
) -> None:
    place = branch.children[depth]
    if place == width:
        if branch.loss[depth, place - 1] <= loss:
            return
        place -= 1
    else:
        branch.children[depth] = place + 1
    while place > 0 and branch.loss[depth, place - 1] > loss:
        branch.loss[depth, place], branch.child[depth, place] = (
            branch.loss[depth, place - 1],
            branch.child[depth, place - 1],
        )
        place -= 1
    branch.loss[depth, place], branch.child[depth, place] = loss, column


@compiled
def _take(task: CoverProblem, branch: CoverPath, depth: int, column: int) -> None:
    """The child's state."""
    below = depth + 1
    branch.chosen[depth] = column
    branch.need[below], branch.room[below] = branch.need[depth], branch.room[depth]
    branch.stock[below], branch.cost[below] = branch.stock[depth], branch.cost[depth]
    need = branch.need[below]
    if column < 0:
        row = branch.row[depth]
        for kind in range(2):
            branch.cost[below] += task.shortage_price[kind, row] * need[kind, row]
            need[kind, row] = 0.0
    else:
        branch.cost[below] += task.price[column]
        branch.stock[below, task.gpu_type[column]] -= 1.0
        for at in range(task.service.shape[1]):
            service = task.service[column, at]
            if service == task.need.shape[1] - 1:
                break
            left = need[0, service] - task.capacity[column, at]
            need[0, service] = left if left > _MET * task.need[0, service] else 0.0
            need[1, service] = max(0.0, need[1, service] - 1.0)
            branch.room[below, service] -= 1.0
    branch.bound[below] = _bound(task, branch, below)
