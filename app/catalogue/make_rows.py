"""The function that solvers size language models with, without what it takes a second to import."""

from app.solver.llm_rows import RowsAnswer, RowsRequest


def make_rows(request: RowsRequest) -> RowsAnswer:
    """All ways to run a language model's service: as of `app.catalogue.llm_rows`."""
    from app.catalogue import llm_rows

    return llm_rows.make_rows(request)
