"""Traces: arrival rates and job lists from public sets, changed, described and made. docs/traces.md says how."""
