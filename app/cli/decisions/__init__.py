"""policy, explain, what-if, approve, reject, rollback, pause, resume."""
