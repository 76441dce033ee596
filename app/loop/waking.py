"""Scale to zero: a request that waits is demand, however little the forecast makes of it.

A forecast of a service that is asked once an hour says 0, and is right. So the newest windows themselves decide whether
the one replica runs that such a service needs: from its first request on, while anything waits, runs or starts, and for
the downscale delay after that. However long a start takes, what starts is therefore not given up before it is ready;
what fails to start is, once it was tried some times (`app.store.windows`) and none waits for it any more.
"""

from collections.abc import Sequence
from itertools import pairwise

from app.loop.observe import age_s, windows_by_service
from app.store.store import ServiceWindow, Snapshot
from solvers.types.state import Service

WAKING = "waiting"
"""Method of a demand that is there because requests were, and no forecast."""
WAKING_RPS = 1.0 / 60.0
"""Any replica carries so little: it takes one, and what comes on top of the first request is the forecast's."""
MAX_PASSING, PASSING_S = 10, 60.0
"""Up to this number of requests within this time, a service that woke may be at rest again in another minute."""


def is_awake(
    service: Service, windows: Sequence[ServiceWindow], snapshot: Snapshot
) -> bool:
    """Whether a service that scales to zero has, or had until the downscale delay, something to do; windows: its own,
    oldest first."""
    if not service.scaling.may_be_zero:
        return False
    # A tick must see what came since the one before, also where nothing is to stay.
    settings = snapshot.settings
    since_s = max(
        service.scaling.downscale_delay_s, settings.period_s, settings.window_s
    )
    for window in reversed(windows):
        if age_s(window, snapshot.at) > since_s:
            break
        if window.arrivals or window.pending:
            return True
    return False


def waking_services(snapshot: Snapshot) -> tuple[str, ...]:
    """Those that would have no replica but for a few requests, and that have woken just now, sorted."""
    sleepers = {
        each.name: each for each in snapshot.state.services if each.scaling.may_be_zero
    }
    if not sleepers:
        return ()
    windows = windows_by_service(w for w in snapshot.windows if w.service in sleepers)
    gpus = () if snapshot.target is None else snapshot.target.gpus
    planned = {each.service for gpu in gpus for each in gpu.replicas}

    def wakes(service: Service) -> bool:
        mine = windows[service.name]
        passing = (w.arrivals for w in mine if age_s(w, snapshot.at) < PASSING_S)
        return (
            is_awake(service, mine, snapshot)
            and sum(passing) <= MAX_PASSING
            and (service.name not in planned or _has_waited(service, mine, snapshot))
        )

    return tuple(name for name, each in sorted(sleepers.items()) if wakes(each))


def _has_waited(
    service: Service, windows: Sequence[ServiceWindow], snapshot: Snapshot
) -> bool:
    """Whether requests have waited for a first replica within the downscale delay.

    One that is served steadily by its replica is not woken by each request, though one may be under way at the end of
    any window: then it is answered in the next.
    """
    delay_s = service.scaling.downscale_delay_s
    newest = (w for w in windows if age_s(w, snapshot.at) <= delay_s)
    waited = [bool(w.pending) and not w.served for w in newest]
    return any(one and other for one, other in pairwise(waited))
