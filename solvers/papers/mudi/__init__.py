"""Mudi: tasks next to services by the smallest slope, tuned by GP-LCB."""
