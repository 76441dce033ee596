"""MIG: layouts read, slices as devices of their own, and an operator's command that changes a layout."""
