"""`plimsoll serve` on a clock that runs faster: `python -m bench.campaign.deployment.fast_plane ANCHOR_S SPEED`.

As the setting PLIMSOLL_SPEED has it, but anchored: a control plane that is started again goes on at the time that its
nodes have.
"""

import asyncio
import sys

from app.base.clock import WallClock
from app.base.logs import configure_logs
from app.base.settings import Settings
from app.serve.api_process import serve_plane
from app.serve.plane import make_plane


def main() -> None:
    """Until SIGTERM. `ANCHOR_S`: the Unix time from which the clock runs `SPEED` times as fast."""
    settings = Settings()
    configure_logs(settings)
    clock = WallClock(speed=float(sys.argv[2]), anchor_s=float(sys.argv[1]))
    asyncio.run(serve_plane(make_plane(settings, clock=clock)))


if __name__ == "__main__":
    main()
