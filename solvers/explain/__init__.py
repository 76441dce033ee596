"""Why a plan is as it is: full limits, prices, alternatives, what would help, what a loss would cost."""
