"""A package, so that its browser ends before other tests begin: Playwright's loop keeps theirs from starting."""
