"""Published systems, one folder each; the core knows none of them."""
