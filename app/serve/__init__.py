"""Where the parts are wired, and the processes that run them."""
