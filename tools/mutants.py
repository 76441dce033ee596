"""Whether `make test` catches faults: small changes of the source at random places, one at a time, in a copy.

    python -m tools.mutants --seed 1 --count 60

A mutant is one change of one line: a comparison, `and` or `or`, `+ - * /` or `min` and `max` is replaced by its
neighbour, a condition is negated, a number is one higher, a boolean is the other one, or a call that is a statement
is left out. It is caught where a test fails, or hangs. First the tests that mirror its folder run, then, where these
pass, all of `make test`: a survivor costs as much as that. Prints two lines for each mutant, and the sum.
"""

import argparse
import ast
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = (
    "app/loop/**/*.py",
    "app/db/decisions/**/*.py",
    "solvers/check*.py",
    "solvers/joint/**/*.py",
    "agents/enforce/**/*.py",
    "agents/sync/**/*.py",
)
"""Where a fault would cost most: what decides, what judges it, what brings it to the nodes and in force there."""
LIMIT_S = 1_800
SWAPS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change: the characters from `start` to `end` of the file become `text`."""

    path: Path
    line: int
    start: int
    end: int
    before: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before!r} -> {self.text!r}"


def mutants_of(path: Path, source: str) -> list[Mutant]:
    """All changes of a file that the module's docstring names, in the order of their places."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    raw = source.encode()

    def at(line: int, column: int) -> int:
        return starts[line - 1] + column

    def change(start: int, end: int, text: str) -> Mutant:
        before = raw[start:end].decode()
        line = raw[:start].count(b"\n") + 1
        return Mutant(
            path=path, line=line, start=start, end=end, before=before, text=text
        )

    def between(left: ast.expr, right: ast.expr, kind: type[ast.AST]) -> list[Mutant]:
        if kind not in SWAPS:
            return []
        sign, other = SWAPS[kind]
        begin = at(left.end_lineno or 0, left.end_col_offset or 0)
        found = raw.find(sign.encode(), begin, at(right.lineno, right.col_offset))
        return [] if found < 0 else [change(found, found + len(sign), other)]

    def whole(node: ast.expr | ast.stmt, text: str) -> Mutant:
        return change(
            at(node.lineno, node.col_offset),
            at(node.end_lineno or 0, node.end_col_offset or 0),
            text,
        )

    def of(node: ast.AST) -> Iterator[Mutant]:
        match node:
            case ast.Compare(left=left, ops=ops, comparators=others):
                for (one, two), op in zip(pairwise([left, *others]), ops, strict=True):
                    yield from between(one, two, type(op))
            case ast.BoolOp(op=op, values=values):
                for one, two in pairwise(values):
                    yield from between(one, two, type(op))
            case ast.BinOp(left=one, op=op, right=two):
                yield from between(one, two, type(op))
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield whole(test, f"(not ({ast.unparse(test)}))")
            case ast.Constant(value=bool(value)):
                yield whole(node, str(not value))
            case ast.Constant(value=int(value)):
                yield whole(node, str(value + 1))
            case ast.Call(func=ast.Name(id="min" | "max" as name) as function):
                yield whole(function, "max" if name == "min" else "min")
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield whole(node, "pass")
            case _:
                pass

    tree = ast.parse(source)
    found = [each for node in ast.walk(tree) for each in of(node)]
    return sorted(found, key=lambda each: (each.start, each.end, each.text))


def choose(seed: int, count: int) -> list[Mutant]:
    """That many of all mutants of PARTS, each as likely as the others; the same for the same seed and source."""
    files = sorted({path for part in PARTS for path in ROOT.glob(part)})
    everything = [
        mutant
        for path in files
        for mutant in mutants_of(path.relative_to(ROOT), path.read_text())
    ]
    return random.Random(seed).sample(everything, count)


def fails(copy: Path, tests: Sequence[str]) -> str:
    """The first test that fails in the copy, or "it hangs"; empty: none does."""
    command = [sys.executable, "-m", "pytest", *tests, "-x", "-n", "2"]
    command += ["--dist", "worksteal", "-m", "not thorough", "-p", "no:cacheprovider"]
    # Also the programs that tests start are to be the copy's.
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "it hangs"
    failed = [
        line.split(" - ")[0].split(" ", 1)[1]
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    ]
    # 5: the folder has no test of its own.
    return "" if done.returncode in (0, 5) else (failed or ["it does not start"])[0]


def judge(copy: Path, mutant: Mutant) -> str:
    """Which test catches it; empty: none."""
    target = copy / mutant.path
    source = target.read_bytes()
    changed = source[: mutant.start] + mutant.text.encode() + source[mutant.end :]
    folder = Path("tests") / mutant.path.parent
    try:
        target.write_bytes(changed)
        near = [str(folder)] if (copy / folder).is_dir() else []
        return (fails(copy, near) if near else "") or fails(copy, ["tests"])
    finally:
        target.write_bytes(source)


def _say(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Judge them one after the other."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--list", action="store_true", help="only say which")
    options = parser.parse_args()
    mutants = choose(options.seed, options.count)
    if options.list:
        _say(*map(str, mutants))
        return 0
    caught = 0
    with tempfile.TemporaryDirectory(prefix="mutants") as name:
        copy = Path(name) / "tree"
        # With what is compiled, and with the times of files by which that is found again.
        leave = [f"--exclude={each}" for each in (".git", ".venv", ".plimsoll")]
        copy.mkdir()
        packed = subprocess.Popen(
            ["tar", "-c", *leave, "-C", str(ROOT), "."], stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "-x", "-C", str(copy)], stdin=packed.stdout, check=True)
        for number, mutant in enumerate(mutants, 1):
            test = judge(copy, mutant)
            caught += bool(test)
            _say(f"{number:3} {mutant}", f"    {test or 'SURVIVES'}")
    _say(f"seed {options.seed}: {caught} of {len(mutants)} caught")
    return 0


if __name__ == "__main__":
    sys.exit(main())
