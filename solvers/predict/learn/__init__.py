"""From samples and served executions to fits, offline and online."""
