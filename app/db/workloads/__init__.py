"""Services, tasks, projects, budgets."""
