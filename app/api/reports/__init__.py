"""Costs, reports, exports, demand."""
