"""MIG: layouts read and changed."""
