"""Forecast: the arrival rate that the next plan must serve."""
