"""Language models that move to another node: their successors load weights for minutes."""

from agents.enforce.reconcile import MODEL_LIMIT_S
from tests.agents.daemon.test_loop import with_a_replica_that_moved
from tests.agents.factories import an_engine


def test_a_language_model_serves_on_for_as_long_as_its_successor_loads() -> None:
    bench = with_a_replica_that_moved(an_engine(0))
    bench.step(2.0 * bench.agent.settings.migration_limit_s)
    bench.step()
    assert "drain old" not in bench.device.log
    # A successor that never comes keeps no GPUs for ever.
    bench.step(MODEL_LIMIT_S)
    bench.step()
    assert "drain old" in bench.device.log
