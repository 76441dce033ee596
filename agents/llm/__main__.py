"""`python -m agents.llm`: the stand-in as a program, with vLLM's options as far as it has them."""

import argparse
import sys

from aiohttp import web

from agents.base.arguments import amount, integer, positive
from agents.llm.scheduler import BLOCK_TOKENS, EngineSize, LlmScheduler
from agents.llm.server import LlmServer, StepTime


def main(arguments: list[str]) -> int:
    """Serve until told to stop; what is streamed then is finished first."""
    options = argparse.ArgumentParser(prog="python -m agents.llm", description=__doc__)
    options.add_argument("--served-model-name", required=True, metavar="NAME")
    options.add_argument("--host", default="127.0.0.1", help="(default: %(default)s)")
    options.add_argument("--port", type=integer(1, 65535), required=True)
    for name, default in (
        ("max-num-batched-tokens", 2048),
        ("max-num-seqs", 256),
        ("kv-tokens", 65_536),
    ):
        options.add_argument(
            f"--{name}",
            type=integer(1, 2**31),
            default=default,
            help="(default: %(default)s)",
        )
    options.add_argument(
        "--step-ms",
        type=positive,
        default=8.0,
        help="of the smallest step (default: %(default)s)",
    )
    options.add_argument(
        "--load-s",
        type=amount(3600.0),
        default=0.0,
        help="until it is ready (default: %(default)s)",
    )
    options.add_argument(
        "--speed",
        type=positive,
        default=1.0,
        help="times as fast (default: %(default)s)",
    )
    options.add_argument(
        "--enable-sleep-mode",
        action="store_true",
        help="it can be put to sleep and woken",
    )
    options.add_argument(
        "--sleep-s",
        type=amount(3600.0),
        default=0.0,
        help="until it sleeps (default: %(default)s)",
    )
    chosen = options.parse_args(arguments)
    size = EngineSize(
        max_num_batched_tokens=chosen.max_num_batched_tokens,
        max_num_seqs=chosen.max_num_seqs,
        kv_blocks=max(1, chosen.kv_tokens // BLOCK_TOKENS),
    )
    server = LlmServer(
        chosen.served_model_name,
        LlmScheduler(size),
        StepTime(base=chosen.step_ms, speed=chosen.speed),
        load_s=chosen.load_s,
        can_sleep=chosen.enable_sleep_mode,
        sleep_s=chosen.sleep_s,
    )
    web.run_app(
        server.make_app(),
        host=chosen.host,
        port=chosen.port,
        handler_cancellation=True,
        access_log=None,
        print=None,
        shutdown_timeout=3600.0,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
