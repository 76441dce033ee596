"""Errors of the pure half.

SolversError
├── InvalidInput      a Problem, Plan or other document breaks the contract; names the field and the remedy
└── UnknownPolicy     no policy of that name; lists the names that exist

Expected outcomes (infeasible, out of time) are values in `outcome`, never exceptions.
"""


class SolversError(Exception):
    """Base of every error that `solvers` raises on purpose."""


class InvalidInput(SolversError, ValueError):
    """A document breaks the contract. `field` is the path of the offending value, e.g. `services[2].slo_ms`."""

    def __init__(self, field: str, problem: str) -> None:
        # A document that is not JSON at all has no field to name.
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field
        self.problem = problem


class UnknownPolicy(SolversError, LookupError):
    """The registry has no policy of that name."""
