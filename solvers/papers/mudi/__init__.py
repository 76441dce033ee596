"""Mudi: tasks beside services by the smallest slope, tuned by GP-LCB."""
