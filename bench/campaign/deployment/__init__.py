"""A whole deployment of real processes that may be killed, cut off and put under another clock."""
