"""up, serve, controller, agent, worker, trainer, relay, plan."""
