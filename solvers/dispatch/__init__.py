"""Dispatch: in which order waiting work is taken up."""
