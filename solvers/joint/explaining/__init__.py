"""Why a joint plan is as it is: prices, what holds services back, alternatives, what would help."""
